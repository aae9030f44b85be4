"""A control group with a limit of memory, in which the kernel's OOM killer may be provoked.

It is made by root alone, below the top of the hierarchy of version 2, or of version 1 where that
has the memory controller, and removed afterwards. What runs in it dies of its own limit: the memory
of the machine is never used up. No controller is switched on for others.
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
from zerotools.sensors.cgroup_memory import CgroupMemory, read_cgroup_memory
from zerotoolsd.supervisor.cgroups.group import AttemptGroup

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
    """This machine gives nobody a group with a limit; the text says why."""


@dataclass(frozen=True)
class LimitedGroup:
    """`proc` is what /proc/PID/cgroup says of a process in it."""

    directory: Path
    proc: Path

    def read(self) -> CgroupMemory:
        """What is left in it, and what the kernel has counted."""
        return read_cgroup_memory(self.proc, ROOT)

    def start(self) -> HungryProcess:
        """A process in it that has taken nothing yet."""
        return HungryProcess(self.directory / PROCS)


class HungryProcess:
    """It takes memory when it is told to, and ends when its input does."""

    def __init__(self, entrance: Path) -> None:
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(entrance)]
        pipe = subprocess.PIPE
        self._process = Started(command, text=True, bufsize=1, stdin=pipe, stdout=pipe)
        self._answer()

    def take(self, size: int) -> bool:
        """Take so many bytes more; False: it was ended."""
        try:
            self._process.stdin.write(f"{size}\n")  # type: ignore[union-attr]
        except BrokenPipeError:
            return False
        return self._answer()

    def _answer(self) -> bool:
        return bool(self._process.stdout.readline())  # type: ignore[union-attr]

    def is_running(self) -> bool:
        """Whether nobody has ended it."""
        return self._process.is_running()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.end()

    def status(self) -> int:
        """How it ended: 0, or less the number of the signal."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        status = self._process.wait(20)
        self._process.end()
        return status


@contextmanager
def limited(size: int, scratch: Path) -> Iterator[LimitedGroup]:
    """A group with `size` bytes and no swap. Raises NoLimit."""
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
    raise NoLimit(f"no hierarchy below {ROOT} has the memory controller for groups of one's own")
