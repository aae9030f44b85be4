"""Where DeepSpeed's operators are compiled, and whose turn it is.

torch marks a directory in which it compiles by a file `lock` (torch/utils/file_baton.py). A process
that is killed meanwhile leaves it behind, and whoever needs the operator then waits for ever. In a
directory of ours a lock of the kernel's says who compiles: it ends with its process, so that a
`lock` which is found under it is a leftover. In a directory of the user's, where programs that know
nothing of ours compile too, a `lock` is named and waited for, and never removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

BUILDS = "TORCH_EXTENSIONS_DIR"
TURN = "zerotools.lock"
"""The file beside torch's `lock` on which the kernel's lock is taken."""
WAIT_SECONDS = 0.2
LOOK_SECONDS = 1.0


class BuildReporter(Protocol):
    """Who says what a rank does."""

    doing: str | None

    def prepares(self, doing: str) -> None:
        """What is done before the first step."""
        ...

    def say(self, line: str) -> None:
        """A line for people."""
        ...


def own_directory(torch_version: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's jobs compile for this Python and this torch. Raises RuntimeError: there is
    no home directory."""
    given = environment.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path.home() / ".cache"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    # Two environments may have other versions of DeepSpeed, whose operators bear the same names.
    prefix = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    return cache / "zerotools" / "torch_extensions" / f"{python}-torch{torch_version}-{prefix}"


def build_in_own(torch_version: str, environment: Any = os.environ) -> bool:
    """Have operators compiled in a directory of ours, unless the user has named one; whether.

    `environment` is changed. Where the directory cannot be made it stays torch's usual one.
    """
    if environment.get(BUILDS):
        return False
    try:
        directory = own_directory(torch_version, environment)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return False
    environment[BUILDS] = str(directory)
    return True


def take_turns(batons: Any, *, own: bool, teller: BuildReporter) -> None:
    """Have torch compile by turns of ours. `batons` are the modules in which it finds FileBaton."""
    for module in batons:
        if hasattr(module, "FileBaton"):
            module.FileBaton = lambda path, *_, **__: Baton(Path(path), own=own, teller=teller)


class BuildProgress:
    """Says which files of an operator are made, as they come: ninja's own words are kept back."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._known: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="made")

    def __enter__(self) -> BuildProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Say what has been made since the last look."""
        try:
            plan = (self._directory / "build.ninja").read_text("utf-8", errors="replace")
        except OSError:  # not written yet
            return
        wanted = re.findall(r"^build ([^:]+):", plan, re.MULTILINE)
        made = [name for name in wanted if (self._directory / name).exists()]
        new = [name for name in made if name not in self._known]
        self._known = made
        if new:
            what, count = self._directory.name, f"{len(made)} of {len(wanted)} files made"
            self._say(f"compiling {what}: {count} ({', '.join(new)})")


class Baton:
    """torch's `FileBaton` for one operator: who has it may compile in its directory.

    `own`: the directory is one in which everybody who compiles holds the kernel's lock.
    """

    def __init__(
        self,
        lock: Path,
        *,
        own: bool,
        teller: BuildReporter,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lock = lock
        self._own = own
        self._teller = teller
        self._pause = pause
        self._clock = clock
        self._turn: int | None = None
        self._before: str | None = None
        self._made: BuildProgress | None = None

    def try_acquire(self) -> bool:
        """Wait for the turn; always True: whoever comes later finds nothing left to compile."""
        self._before = self._teller.doing
        name = self.lock.parent.name
        if self._own:
            self._wait_for_turn(name)
            self._remove_leftover()
        self._make_lock()
        if not (self.lock.parent / f"{name}.so").exists():
            self._teller.prepares(f"compiling {name}")
            self._made = BuildProgress(self.lock.parent, self._teller.say).__enter__()
        return True

    def _wait_for_turn(self, name: str) -> None:
        self._turn = os.open(self.lock.with_name(TURN), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        said = False
        while not self._has_turn():
            if not said:
                self._teller.prepares(f"compiling {name} (another process does it)")
            said = True
            self._pause(WAIT_SECONDS)

    def _has_turn(self) -> bool:
        assert self._turn is not None
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _remove_leftover(self) -> None:
        try:
            age = self._age()
            self.lock.unlink()
        except FileNotFoundError:
            return
        self._teller.say(f"removed {self.lock}, left {age} ago by a process that has ended")

    def _make_lock(self) -> None:
        """As torch does, for programs that know nothing of our turns."""
        said = False
        while True:
            try:
                os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                said = said or self._point_out()
                self._pause(WAIT_SECONDS)
            else:
                return

    def _point_out(self) -> bool:
        try:
            age = self._age()
        except FileNotFoundError:
            return False
        self._teller.prepares(
            f"waiting for {self.lock}, made {age} ago: another program is compiling there; "
            "if none is running, it was killed: remove the file"
        )
        self._teller.say(f"waiting for {self.lock}, which was made {age} ago")
        return True

    def _age(self) -> str:
        return _in_words(self._clock() - self.lock.stat().st_mtime)

    def wait(self) -> None:
        """Never needed: `try_acquire` has waited."""

    def release(self) -> None:
        """The operator is compiled, or cannot be."""
        if self._made is not None:
            self._made.__exit__()
            self._made = None
        self.lock.unlink(missing_ok=True)
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None
        if self._before is not None and self._teller.doing != self._before:
            self._teller.prepares(self._before)


def _in_words(seconds: float) -> str:
    whole = max(0, round(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"
