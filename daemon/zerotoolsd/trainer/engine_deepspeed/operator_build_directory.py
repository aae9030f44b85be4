"""Chooses the directory in which DeepSpeed's operators are compiled, and locks it.

While torch compiles in a directory, the directory contains a file `lock`
(torch/utils/file_baton.py). If the process is killed, this file stays, and every later process
waits forever. In the directory of zerotools, a process that compiles also holds a kernel lock. The
kernel releases this lock when the process ends. So a process that gets the kernel lock can remove
an old `lock` file. If the user has chosen the directory, other programs may compile in it too. In
such a directory, a process reports a `lock` file and waits, and never removes it.
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
"""Name of the file, next to torch's `lock`, on which the kernel lock is held."""
WAIT_SECONDS = 0.2
LOOK_SECONDS = 1.0


class BuildReporter(Protocol):
    """Reports the activity of a rank. `doing` is the current activity; None if no activity was
    reported.
    """

    doing: str | None

    def prepares(self, doing: str) -> None:
        """Report the activity `doing`, before the first step."""
        ...

    def log_line(self, line: str) -> None: ...


def own_directory(torch_version: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for compiled operators of this user, for this Python and this torch.

    Raises RuntimeError if the user has no home directory.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path.home() / ".cache"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    # Two environments may have different versions of DeepSpeed with the same names of operators.
    prefix = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    return cache / "zerotools" / "torch_extensions" / f"{python}-torch{torch_version}-{prefix}"


def use_own_directory(torch_version: str, environment: Any = os.environ) -> bool:
    """Make torch compile operators in the directory of zerotools. Return True if this was possible.

    The directory is set in `environment`. If the user has chosen another directory, or if the
    directory cannot be made, `environment` stays unchanged and the result is False. torch then uses
    its usual directory.
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


def install_batons(batons: Any, *, uses_kernel_lock: bool, teller: BuildReporter) -> None:
    """Replace torch's class `FileBaton` by `Baton` in the modules `batons`.

    For `uses_kernel_lock`, see `Baton`. `teller` reports the progress of compiling.
    """
    for module in batons:
        if hasattr(module, "FileBaton"):
            module.FileBaton = lambda path, *_, **__: Baton(
                Path(path), uses_kernel_lock=uses_kernel_lock, teller=teller
            )


class BuildProgress:
    """Reports the files of an operator as they are compiled, because the output of ninja is not
    shown.
    """

    def __init__(self, directory: Path, log_line: Callable[[str], None]) -> None:
        self._directory = directory
        self._log_line = log_line
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
            self.report_new_files()

    def report_new_files(self) -> None:
        """Report the files that were compiled since the last call."""
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
            self._log_line(f"compiling {what}: {count} ({', '.join(new)})")


class Baton:
    """Replaces torch's `FileBaton`, the lock of the directory in which one operator is compiled.

    `uses_kernel_lock` is True if every process that compiles in the directory uses the kernel lock.
    """

    def __init__(
        self,
        lock: Path,
        *,
        uses_kernel_lock: bool,
        teller: BuildReporter,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lock = lock
        self._uses_kernel_lock = uses_kernel_lock
        self._teller = teller
        self._pause = pause
        self._clock = clock
        self._turn: int | None = None
        self._before: str | None = None
        self._made: BuildProgress | None = None

    def try_acquire(self) -> bool:
        """Wait for the lock, and return True. torch then compiles, or finds that another process
        has compiled the operator meanwhile.
        """
        self._before = self._teller.doing
        name = self.lock.parent.name
        if self._uses_kernel_lock:
            self._wait_for_turn(name)
            self._remove_leftover()
        self._make_lock()
        if not (self.lock.parent / f"{name}.so").exists():
            self._teller.prepares(f"compiling {name}")
            self._made = BuildProgress(self.lock.parent, self._teller.log_line).__enter__()
        return True

    def _wait_for_turn(self, name: str) -> None:
        self._turn = os.open(self.lock.with_name(TURN), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        said = False
        while not self._has_turn():
            if not said:
                self._teller.prepares(f"compiling {name} (in another process)")
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
        self._teller.log_line(f"removed {self.lock}, left {age} ago by an ended process")

    def _make_lock(self) -> None:
        """Make torch's `lock` file, for programs that do not use the kernel lock.

        Wait while the file exists.
        """
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
            f"waiting for {self.lock}, which another program made {age} ago to compile there; "
            "if that program was killed and none compiles there now, remove the file"
        )
        self._teller.log_line(f"waiting for {self.lock}, which was made {age} ago")
        return True

    def _age(self) -> str:
        return _duration_text(self._clock() - self.lock.stat().st_mtime)

    def wait(self) -> None:
        """Do nothing, because `try_acquire` has already waited for the lock."""

    def release(self) -> None:
        """Release both locks after the operator was compiled, or after compiling failed."""
        if self._made is not None:
            self._made.__exit__()
            self._made = None
        self.lock.unlink(missing_ok=True)
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None
        if self._before is not None and self._teller.doing != self._before:
            self._teller.prepares(self._before)


def _duration_text(seconds: float) -> str:
    whole = max(0, round(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"
