"""End every process that a fault-injection test has started, even if the test itself is killed.

`CleanupProcess` is a process that starts with the test. It waits for the end of the test and kills
the remaining processes, also processes that are stopped by SIGSTOP. A test that was killed cannot
kill its processes itself.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.chaos.own_processes import own_processes, remove_groups, signal_own

SWEEP_SECONDS = 20.0
PAUSE = 0.02


def end_all(place: Path) -> None:
    """Kill every process of the test in the directory `place`, and remove the control groups of
    the test.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while (found := own_processes(place)) and time.monotonic() < deadline:
        for pid in found:
            signal_own(pid, signal.SIGKILL, place)
        time.sleep(PAUSE)
    remove_groups(place / "state")


class CleanupProcess:
    """The process that ends all other processes of the test.

    A process belongs to the test if its environment contains the test's directory. The cleanup
    process does not have the directory in its environment, so it does not kill itself.
    """

    def __init__(self, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def end(self) -> None:
        """Make the cleanup process kill the processes of the test, and wait until they are
        killed.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * SWEEP_SECONDS)


def main(arguments: list[str]) -> int:
    """Wait until stdin is closed, which happens when the test ends.

    Then end all processes of the test.
    """
    sys.stdin.buffer.read()
    end_all(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
