"""The build directory of DeepSpeed's operators, and the locks for builds.

torch marks its build directory by a file `lock` (torch/utils/file_baton.py). A process killed
meanwhile leaves it there, and every later process waits forever. In our directory a kernel lock
shows who compiles: it ends with its process, so that a `lock` found under it is a leftover. In a
directory of the user's, other programs compile too, so a `lock` is reported and waited for, and
never removed.
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
"""The file next to torch's `lock` on which the kernel's lock is taken."""
WAIT_SECONDS = 0.2
LOOK_SECONDS = 1.0


class BuildReporter(Protocol):
    """Reports the activity of a rank."""

    doing: str | None

    def prepares(self, doing: str) -> None:
        """Report an activity before the first step."""
        ...

    def say(self, line: str) -> None:
        """Print a line for people."""
        ...


def own_directory(torch_version: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the build directory of this user's jobs for this Python and this torch.

    Raises RuntimeError without a home directory.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path.home() / ".cache"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    # Two environments may have different versions of DeepSpeed with the same names of operators.
    prefix = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    return cache / "zerotools" / "torch_extensions" / f"{python}-torch{torch_version}-{prefix}"


def build_in_own(torch_version: str, environment: Any = os.environ) -> bool:
    """Let operators be compiled in our directory, unless the user has named one; return whether.

    `environment` is changed. If the directory cannot be made, torch's usual one is kept.
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
    """Let torch compile under our locks. `batons` are the modules to search for FileBaton."""
    for module in batons:
        if hasattr(module, "FileBaton"):
            module.FileBaton = lambda path, *_, **__: Baton(Path(path), own=own, teller=teller)


class BuildProgress:
    """Reports the files of an operator when they are compiled; the output of ninja is hidden."""

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
        """Report the files that were made since the last call."""
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
    """torch's `FileBaton` for one operator: its holder may compile in the directory.

    `own`: every process that compiles in the directory holds the kernel's lock.
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
        """Wait for the lock; always returns True, because later processes find nothing to
        compile."""
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
        self._teller.say(f"removed {self.lock}, left {age} ago by an ended process")

    def _make_lock(self) -> None:
        """Make torch's lock file, for programs that do not use our lock."""
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
        """Do nothing: `try_acquire` has waited."""

    def release(self) -> None:
        """Release the locks: the operator is compiled, or cannot be."""
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
