"""Real daemons, supervisors and commands, forked from a process after it imported them.

The imports of a daemon take a second, and so does a story; so the imports are done once.
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
    "zerotoolsd.supervisor.main",
    "zerotoolsd.trainer.checkpoints.commit",
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
    """Start a process of `held.py`, with `hold` as one of its options. Its output goes to
    `place/log`."""
    command = ("-P", str(HELD), *((hold,) if hold else ()), role, *map(str, arguments))
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ZEROTOOLS"))}
    with (place / "log").open("ab") as log:
        return forked.start(MODULES, command, cwd=place, env={**mine, **(env or {})}, out=log)


class Victim:
    """A process with an injection at its N-th call, or a count of its calls.

    With `child` it is the process that the started one forks: a supervisor, the child of its
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
        """Let it begin."""
        os.kill(self.pid, signal.SIGCONT)

    def is_over(self) -> bool:
        """Return whether it has ended. Its tracer ends with it."""
        return self.tracer.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Wait for its end, and return whether it ended within `seconds` of an idle machine."""
        deadline = Deadline(seconds)
        while not self.is_over():
            if deadline.has_passed():
                return False
            time.sleep(0.005)
        return True

    def end(self) -> None:
        """Kill this process only: its children continue."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.tracer.wait(20)
        if self.pid == self.started.pid:
            self.started.wait(20)

    def was_hit(self) -> bool:
        """Return whether the call came."""
        return tracing.injected(self.trace)


def children(pid: int) -> list[int]:
    """Return the children of one process."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


_GET_INFO, _EXIT = 11, 1 << 3


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process after any other process has waited for it.

    None means that it runs, or that the kernel has no such call (before Linux 6.15).
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
