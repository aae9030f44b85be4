"""Starts real daemons, supervisors and commands by a fork of a process that has imported them.

Importing a daemon's modules takes a second, as long as a whole story. So they are imported only
once.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness import forked
from harness.faults import tracing
from harness.faults.tracing import Injection
from harness.forked import Forked
from harness.patience import Deadline

MODULES = (
    "zerotoolsd.app.run_daemon",
    "zerotoolsd.slurm.runner.batch",
    "zerotoolsd.slurm.runner.node",
    "zerotoolsd.supervisor.main",
    "zerotoolsd.supervisor.preloaded.fork_attempts",
    "zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints",
    "zerotoolsd.trainer.rank.notify_supervisor",
)
HELD = Path(__file__).with_name("held.py")


def start(
    role: str,
    arguments: Sequence[str | Path],
    place: Path,
    *,
    hold: str = "",
    env: Mapping[str, str] | None = None,
) -> Forked:
    """Start a process of `held.py` with the role `role`. `hold` is one of its options, or empty.

    Its output goes to the file `place/log`.
    """
    command = ("-P", str(HELD), *((hold,) if hold else ()), role, *map(str, arguments))
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ZEROTOOLS"))}
    with (place / "log").open("ab") as log:
        return forked.start(MODULES, command, cwd=place, env={**mine, **(env or {})}, out=log)


class Victim:
    """A process under strace, with an injection. Without an injection, its calls are counted.

    With `child`, this is the process that the started process forks: the supervisor, a child of its
    keeper.
    """

    def __init__(
        self,
        role: str,
        arguments: Sequence[str | Path],
        place: Path,
        injection: Injection | None,
        *,
        child: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.trace = place / "trace"
        hold = "--hold-child" if child else "--hold"
        self.started = start(role, arguments, place, hold=hold, env=env)
        self.pid = self._held(child)
        self.tracer = tracing.attach(self.pid, self.trace, injection)

    def _held(self, child: bool) -> int:
        deadline = Deadline(20)
        while not deadline.has_passed():
            pids = children(self.started.pid) if child else [self.started.pid]
            for pid in pids:
                if tracing.is_stopped(pid):
                    return pid
            if not self.started.is_running():
                raise ChildProcessError(f"{self.started} ended before it was traced")
            time.sleep(0.002)
        raise ChildProcessError(f"{self.started} did not stop to be traced")

    def go(self) -> None:
        """Let the process begin."""
        os.kill(self.pid, signal.SIGCONT)

    def is_over(self) -> bool:
        """Return whether the process has ended. Then strace has ended too."""
        return self.tracer.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended, and return whether it ended within `seconds`.

        On a busy machine, the wait is longer: see `patience`.
        """
        deadline = Deadline(seconds)
        while not self.is_over():
            if deadline.has_passed():
                return False
            time.sleep(0.005)
        return True

    def end(self) -> None:
        """Kill only this process. Its children continue."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.tracer.wait(20)
        if self.pid == self.started.pid:
            self.started.wait(20)

    def was_hit(self) -> bool:
        """Return whether the process was killed by strace, or a call was made to fail."""
        return tracing.injected(self.trace)


def children(pid: int) -> list[int]:
    """Return the pids of the children of the process `pid`."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


_GET_INFO, _EXIT = 11, 1 << 3


def exit_status(pidfd: int) -> int | None:
    """Return the exit status of a process as `waitpid` gives it, even after another process has
    waited.

    Returns None if the process still runs, or if the kernel does not support this (before Linux
    6.15).
    """
    import fcntl

    buffer = bytearray(struct.pack("<Q", _EXIT) + bytes(56))
    request = (3 << 30) | (len(buffer) << 16) | (0xFF << 8) | _GET_INFO
    try:
        fcntl.ioctl(pidfd, request, buffer)
    except OSError:
        return None
    mask, *_, status = struct.unpack_from("<QQIIIIIIIIIIIi", buffer)
    return int(status) if mask & _EXIT else None
