"""Find the processes of a fault-injection test, and send signals only to these processes.

A pid may be reused by another process before a signal is sent. So first a pidfd is opened, then the
process with that pid is checked, and the signal is sent through the pidfd. If the pid was reused
between the first two steps, the process of the pidfd has ended, and the signal has no effect.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "ZEROTOOLS_DRILL"
"""The environment variable with the path of the test's directory.

The daemon and all jobs of the test have this variable.
"""
_RUN_DIR = b"ZEROTOOLS_RUN_DIR"
_SUPERVISOR = b"/supervisor/entry.py"


class LiveAttempt(NamedTuple):
    """A running attempt: the number of its job, and the pids of its processes."""

    job: int
    supervisor: int
    keeper: int
    rank: int

    def pid_of(self, role: str) -> int:
        """Return the pid of the process with the role `role`: `supervisor`, `keeper` or `rank`."""
        return int(getattr(self, role))


def live_attempts(state_dir: Path, place: Path) -> Iterator[LiveAttempt]:
    """Yield the running attempts of the test in the directory `place`.

    An attempt is running if its rank 0 runs and the end of the attempt is not recorded.
    """
    for run in sorted(state_dir.glob("jobs/*/attempt-*/run.json")):
        if (run.parent / "exit.json").exists():
            continue
        with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
            tree: dict[str, Any] = json.loads(run.read_text("utf-8"))
            rank = int(tree["ranks"][0]["pid"])
            if is_own(rank, place):
                job, keeper = int(run.parent.parent.name), int(tree["keeper"]["pid"])
                yield LiveAttempt(job, int(tree["pid"]), keeper, rank)


def is_own(pid: int, place: Path) -> bool:
    """Return whether the process `pid` belongs to the test in the directory `place`.

    A process of the test has this directory in its environment. A supervisor has an empty
    environment, and belongs to the test if it supervises an attempt in `place`.
    """
    own = os.fsencode(place)
    _await_program(pid)
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    for variable in variables:
        name, _, value = variable.partition(b"=")
        if name == os.fsencode(VARIABLE) and value == own:
            return True
        if name == _RUN_DIR and value.startswith(own + b"/"):
            return True
    after = next((n for n, word in enumerate(words) if word.endswith(_SUPERVISOR)), None)
    return after is not None and any(word.startswith(own + b"/") for word in words[after + 1 :])


def signal_own(pid: int, number: int, place: Path) -> bool:
    """Send a signal to the process `pid` if it belongs to the test in the directory `place`.

    Return whether the signal was sent.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_own(pid, place):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def own_processes(place: Path) -> list[int]:
    """Return the pids of all live processes of the test in the directory `place`."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())
    return [pid for pid in pids if pid != os.getpid() and is_own(pid, place) and not _is_over(pid)]


def _await_program(pid: int, milliseconds: int = 20) -> None:
    """Wait at most `milliseconds` until the kernel has started the program of the process `pid`.

    Before that, /proc shows neither the command nor the environment of the process (exec_mmap in
    fs/exec.c). A kernel thread (a child of process 2, kthreadd) never has a command or an
    environment, so the function does not wait for it.
    """
    for _ in range(milliseconds):
        state, parent = _state_and_parent(pid)
        if state in _OVER or b"2" in (parent, b"%d" % pid):
            return
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():
                return
        time.sleep(0.001)


_OVER = (b"", b"Z", b"X")


def _state_and_parent(pid: int) -> tuple[bytes, bytes]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0], fields[1]
    except (OSError, IndexError):
        return b"", b""


def _is_over(pid: int) -> bool:
    return _state_and_parent(pid)[0] in _OVER


def command_line(pid: int) -> str:
    """Return the pid and the first words of the command line of a process, for a message."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"pid {pid}"
    return f"pid {pid} ({' '.join(word.decode('utf-8', 'backslashreplace') for word in words[:6])})"


def remove_groups(state_dir: Path) -> None:
    """Remove the empty control groups of killed attempts.

    The group of an attempt is recognised by the attempt's token in its name.
    """
    names, places = set(), set()
    for plan in state_dir.glob("jobs/*/attempt-*/attempt.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            tree: dict[str, Any] = json.loads(plan.read_text("utf-8"))
            names.add(f"zerotools-{tree['job_id']}-{tree['attempt']}-{tree['token'][:8]}")
            run: dict[str, Any] = json.loads(plan.with_name("run.json").read_text("utf-8"))
            places.add(Path(run["cgroup"]).parent)
    for place in places:
        for name in names:
            with suppress(OSError):
                (place / name).rmdir()


# End every process that a fault-injection test has started, even if the test itself is killed.
#
# `CleanupProcess` is a process that starts with the test. It waits for the end of the test and
# kills the remaining processes, also processes that are stopped by SIGSTOP. A test that was killed
# cannot kill its processes itself.

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
