"""Watches a process that a user started by hand, until it ends.

This process is not the parent of the watched process. So a cancel, or the end of this process or of
the supervisor, does not affect the watched process. Only the job's time limit ends the watched
process: it gets SIGTERM, as in other jobs, and all its descendants get SIGKILL shortly before the
grace period is over. The exit status of this process is 0 if the watched process ended with 0 or at
the time limit, or is not watched any more. Otherwise it is 1, and a sentence is printed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.io.telemetry.datagram_sender import Sender
from zerotoolsd.supervisor.attempt_plan import REQUEST, TIME_LIMIT
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.procfs import Process, all_processes, boot_id, descendants, zombie_status
from zerotoolsd.supervisor.signal_process import kill_process, open_process
from zerotoolsd.supervisor.spawn_child import SignalWaker
from zerotoolsd.supervisor.stop.stop_programs import Stop

LOOK_SECONDS = 5.0
LEFT_SECONDS = 2.0
"""Seconds that the processes below the watched process have to end after it, if it was asked to
end.
"""
_LAUNCHERS = (b"torch.distributed.run", b"torchrun", b"accelerate", b"deepspeed")


def main(arguments: Sequence[str]) -> int:
    """Watch the process that the arguments `PID START BOOT KILL_AFTER` describe. Return the exit
    status.

    A process that still runs KILL_AFTER seconds after the time limit is killed.
    """
    pid, start, boot, kill_after = arguments
    watch = ProcessWatch(int(pid), int(start), float(kill_after))
    if boot != boot_id():
        return watch.fail(f"process {pid} is gone: the machine was restarted")
    return watch.run()


class ProcessWatch:
    """Watches one process that a user started by hand. Reads ZEROTOOLS_RUN_DIR and
    ZEROTOOLS_NOTIFY from the environment.
    """

    def __init__(self, pid: int, start_ticks: int, kill_after: float) -> None:
        self._pid, self._start_ticks, self._kill_after = pid, start_ticks, kill_after
        self._run_dir = Path(os.environ["ZEROTOOLS_RUN_DIR"])
        self._sender = Sender(os.environ.get("ZEROTOOLS_NOTIFY"))
        self._tree = WatchedTree(pid, start_ticks)
        self._stop = Stop(launcher=_is_launcher(pid))
        self._stopping_since: float | None = None
        self._killed = False

    def run(self) -> int:
        """Watch until the process has ended, or until a stop request ends the watching. Return the
        exit status of this process.
        """
        signals = SignalWaker()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # it was blocked until here
        pidfd = open_process(self._pid, self._start_ticks)
        if pidfd is None:
            return self.fail(
                f"process {self._pid} had ended before it was watched; how it ended is not known"
            )
        self._log_line(
            f"watching process {self._pid}: {_process_name(self._pid)}; {_output_of(self._pid)}"
        )
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.register(signals.socket, select.POLLIN)
        waiting.register(self._stop, select.POLLIN)
        while True:
            self._check()
            ready = {fd for fd, _ in waiting.poll(self._pause() * 1000)}
            if pidfd in ready:
                return self._ended(pidfd)
            if self._stop.fileno() in ready or not self._stop.seconds_left:
                self._stop.advance([self._pid])
            signals.clear()
            if signals.asked and self._stopping_since is None and not self._ask_to_end():
                self._log_line(f"process {self._pid} is no longer watched, and continues")
                return 0

    def _pause(self) -> float:
        if self._stopping_since is None or self._killed:
            return LOOK_SECONDS
        left = self._stopping_since + self._kill_after - time.monotonic()
        return min(LOOK_SECONDS, max(0.0, left), self._stop.seconds_left)

    def _check(self) -> None:
        since, now = self._stopping_since, time.monotonic()
        if since is not None and now >= since + self._kill_after:
            if not self._killed:
                self._log_line(f"process {self._pid} has not ended in time: SIGKILL")
            self._killed = True
            there = self._tree.kill()
        else:
            there = self._tree.update()
        held = sum(process.rss_bytes for process in there)
        self._sender.send({"rank": 0, "watched_bytes": held, "watched_processes": len(there)})

    def _ask_to_end(self) -> bool:
        """Ask the watched process to end, if a stop was requested because of the time limit. After
        any other stop request return False: only the watching ends.
        """
        if self._wanted() != TIME_LIMIT:
            return False
        self._stopping_since = time.monotonic()
        self._tree.update()
        self._stop.begin([self._pid], self._kill_after)
        named = ", ".join(map(str, self._stop.reached)) or "nobody"
        self._log_line(f"its time limit is reached: SIGTERM for {named}")
        return True

    def _wanted(self) -> object:
        try:
            request = read_json(self._run_dir / REQUEST, LARGEST_RECORD)
        except (OSError, ValueError):
            return None
        return None if request is None else request.get("reason")

    def _ended(self, pidfd: int) -> int:
        found = exit_status(pidfd, self._pid, self._start_ticks)
        left = self._end_rest() if self._stopping_since is not None else self._tree.update()
        if left:
            named = ", ".join(str(process.pid) for process in left)
            self._log_line(f"processes that it started still run: {named}")
        if self._stopping_since is not None:
            self._log_line(f"process {self._pid} has ended")
            return 0
        if found is None:
            return self.fail(
                f"process {self._pid} has ended, and its exit status is unknown: this Linux is "
                f"{os.uname().release}, and only Linux 6.15 or newer reports the status of a "
                "process that another program started"
            )
        if found.exit_code == 0:
            self._log_line(f"process {self._pid} exited with 0")
            return 0
        return self.fail(f"process {self._pid} {_exit_text(found)}")

    def _end_rest(self) -> list[Process]:
        """Kill the remaining descendants of the watched process after the time limit. Return the
        processes that do not end.
        """
        deadline = time.monotonic() + LEFT_SECONDS
        while (left := self._tree.update()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            self._tree.kill()
            time.sleep(0.05)
        return self._tree.update()

    def fail(self, why: str) -> int:
        """Report the reason `why` in one sentence. Return the exit status for a failure."""
        self._log_line(why)
        self._sender.send({"event": "error", "rank": 0, "message": why}, wait=True)
        return 1

    def _log_line(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"{stamp} {text}", flush=True)


def _exit_text(found: ExitStatus) -> str:
    if found.signal is None:
        return f"exited with {found.exit_code}"
    try:
        name = signal.Signals(found.signal).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {found.signal} ({name})"


def _process_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "it is ending"
    return words


def _output_of(pid: int) -> str:
    try:
        place = os.readlink(f"/proc/{pid}/fd/1")  # noqa: PTH115  # "… (deleted)", "pipe:[7]"
    except OSError:
        return "its output cannot be found"
    return f"its output goes to {place}"


def _is_launcher(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:4]
    except OSError:
        return False
    return any(name in word for word in words for name in _LAUNCHERS)


_INFO = struct.Struct("=QQ11Ii")
_EXIT = 1 << 3
PIDFD_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""`_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`."""
COLLECTED_SECONDS = 5.0
"""Seconds that the parent of the watched process has to read its exit status."""


@dataclass(frozen=True)
class ExitStatus:
    """The exit status of a process, encoded as in wait(2)."""

    status: int

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if a signal ended the process."""
        return None if os.WIFSIGNALED(self.status) else os.waitstatus_to_exitcode(self.status)

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the process; None if it ended by itself."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None


def exit_status(pidfd: int, pid: int, start_ticks: int) -> ExitStatus | None:
    """Return the exit status of a process that has ended; None if the kernel does not know it
    any more.
    """
    if (found := _kept(pidfd)) is not None:
        return found
    if (status := zombie_status(pid, start_ticks)) is not None:
        return ExitStatus(status & 0xFFFF)
    _await_collected(pidfd)  # it was collected meanwhile, or is about to be
    return _kept(pidfd)


def _kept(pidfd: int) -> ExitStatus | None:
    room = bytearray(_INFO.pack(_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, room)
    except OSError:
        return None  # an older kernel
    mask, *_, code = _INFO.unpack(room)
    return ExitStatus(code & 0xFFFF) if mask & _EXIT else None


def _await_collected(pidfd: int) -> None:
    waiting = select.poll()
    waiting.register(pidfd, 0)  # POLLHUP comes unasked, when the status was collected
    waiting.poll(COLLECTED_SECONDS * 1000)


class WatchedTree:
    """The process (`pid`, `start_ticks`), and all descendants of it that were ever seen.

    Processes are remembered, because they may get another parent later.
    """

    def __init__(
        self,
        pid: int,
        start_ticks: int,
        table: Callable[[], Mapping[int, Process]] = all_processes,
    ) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._table = table
        self._known: dict[tuple[int, int], Process] = {}

    def update(self) -> list[Process]:
        """Return the processes of the tree that are still running."""
        table = self._table()
        root = table.get(self._pid)
        found = {_key(each): each for each in self._live(table)}
        roots = [*found.values()]
        if root is not None and root.start_ticks == self._start_ticks:
            roots.append(root)
        for each in roots:
            for process in (each, *descendants(each.pid, table)):
                found[_key(process)] = process
        self._known = {key: each for key, each in found.items() if not each.is_over}
        return list(self._known.values())

    def _live(self, table: Mapping[int, Process]) -> Iterable[Process]:
        for pid, start in self._known:
            process = table.get(pid)
            if process is not None and process.start_ticks == start and not process.is_over:
                yield process

    def kill(self) -> list[Process]:
        """Send SIGKILL to all processes of the tree, and return these processes. Raises
        PermissionError.
        """
        there = self.update()
        for process in there:
            kill_process(process)
        return there


def _key(process: Process) -> tuple[int, int]:
    return process.pid, process.start_ticks
