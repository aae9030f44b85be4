"""Whatever becomes of a drill, nothing of it goes on running.

`LastSweep` is a process beside the drill that waits until that is over, and kills what is left: a
drill that is killed cannot do so itself, and leaves processes that it had stopped.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.drill.own_processes import own_processes, remove_groups, signal_own

SWEEP_SECONDS = 20.0
PAUSE = 0.02


def end_all(place: Path) -> None:
    """Kill every process of the drill in `place`, and remove what it had of control groups."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while (found := own_processes(place)) and time.monotonic() < deadline:
        for pid in found:
            signal_own(pid, signal.SIGKILL, place)
        time.sleep(PAUSE)
    remove_groups(place / "state")


class LastSweep:
    """It is not one of the processes of the drill in `place`, which it does not name."""

    def __init__(self, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def end(self) -> None:
        """Sweep, and wait until that is done."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * SWEEP_SECONDS)


def main(arguments: list[str]) -> int:
    """Wait for the end of the input, which is that of the drill; then end all of it."""
    sys.stdin.buffer.read()
    end_all(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
