"""A control group with a memory limit, for tests in which the kernel's OOM killer kills a process.

Only root can make such a group. It is directly below the root of the cgroup hierarchy (version 2;
or version 1, if version 1 has the memory controller), and is removed afterwards. Its processes are
killed because of the limit of the group, so the machine does not run out of memory. No controller
is enabled for other groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.started import Started
from zerotools.sensors.cgroup_allowance import CgroupMemory, read_cgroup_memory
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup

ROOT = Path("/sys/fs/cgroup")
PROCS = "cgroup.procs"
_PROGRAM = """
import sys
with open(sys.argv[1], "w") as file:
    file.write("0")
print("ready", flush=True)
held = []
for line in sys.stdin:
    held.append(b"\\1" * int(line))
    print(len(held), flush=True)
"""


class NoLimit(Exception):
    """No group with a memory limit can be made on this machine. The message is the reason."""


@dataclass(frozen=True)
class LimitedGroup:
    """A control group with a memory limit.

    The file `proc` has the text of /proc/PID/cgroup for a process in the group.
    """

    directory: Path
    proc: Path

    def read(self) -> CgroupMemory:
        """Return the remaining memory of the group, and the kernel's counters."""
        return read_cgroup_memory(self.proc, ROOT)

    def start(self) -> HungryProcess:
        """Start a process in the group. The process allocates memory only on request."""
        return HungryProcess(self.directory / PROCS)


class HungryProcess:
    """A process that allocates memory on request. It ends when its standard input is closed."""

    def __init__(self, entrance: Path) -> None:
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(entrance)]
        pipe = subprocess.PIPE
        self._process = Started(command, text=True, bufsize=1, stdin=pipe, stdout=pipe)
        self._answer()

    def take(self, size: int) -> bool:
        """Allocate `size` more bytes in the process. Return False if the process was killed."""
        try:
            self._process.stdin.write(f"{size}\n")  # type: ignore[union-attr]
        except BrokenPipeError:
            return False
        return self._answer()

    def _answer(self) -> bool:
        return bool(self._process.stdout.readline())  # type: ignore[union-attr]

    def is_running(self) -> bool:
        """Return whether the process still runs."""
        return self._process.is_running()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._process.end()

    def status(self) -> int:
        """End the process, and return its exit status: 0, or the negative number of a signal."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        status = self._process.wait(20)
        self._process.end()
        return status


@contextmanager
def limited(size: int, scratch: Path) -> Iterator[LimitedGroup]:
    """Return a context manager that makes a group with a limit of `size` bytes and without swap.

    Raises:
        NoLimit: no such group can be made on this machine.
    """
    name = f"zerotools-test-{os.getpid()}"
    place, line, settings = _kind(size)
    directory = place / name
    try:
        directory.mkdir()
    except OSError as error:
        raise NoLimit(f"{directory}: {error.strerror}") from None
    try:
        for file, value in settings:
            (directory / file).write_text(value)
        proc = scratch / name
        proc.write_text(f"{line}/{name}\n")
        yield LimitedGroup(directory, proc)
    finally:
        group = AttemptGroup(directory)
        for pid in group.pids():  # a test has failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        group.remove()


def _kind(size: int) -> tuple[Path, str, list[tuple[str, str]]]:
    if os.geteuid() != 0:
        raise NoLimit("only root may make a control group here")
    with suppress(OSError):
        if "memory" in (ROOT / "cgroup.subtree_control").read_text().split():
            return ROOT, "0::", [("memory.swap.max", "0"), ("memory.max", str(size))]
    first = ROOT / "memory"
    if (first / "memory.limit_in_bytes").exists():
        settings = [("memory.swappiness", "0"), ("memory.limit_in_bytes", str(size))]
        return first, "1:memory:", settings
    raise NoLimit(f"no hierarchy below {ROOT} lets this process make groups with a memory limit")
