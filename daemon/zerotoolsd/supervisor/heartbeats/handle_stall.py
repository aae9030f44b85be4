"""Handles ranks that make no progress: reports them, writes their stacks to the log, and ends
them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import Heartbeats, event_of
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import DUMP_SIGNAL
from zerotoolsd.supervisor.heartbeats.stall_detector import AttemptStall
from zerotoolsd.supervisor.heartbeats.stall_limits import END, StallLimits
from zerotoolsd.supervisor.procfs import all_processes, descendants, process_report, process_state
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.start_ranks import SupervisedRank

LONGEST_GRACE = 60.0
"""Longest time, in seconds, that ranks have to save a checkpoint after a stall."""
ASKED = "its ranks made no progress"
"""The reason that is written into the stop file for the ranks after a stall."""


class StallHandler:
    """Detects and handles a stall of one attempt: its ranks make no progress. The working directory
    must be the run directory.
    """

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        on_gpus = bool(plan.gpu_uuids) and not plan.own_program
        self._limits = StallLimits.from_plan(plan.stall, on_gpus=on_gpus, sees_all=not plan.meeting)
        self._heartbeats = Heartbeats(
            self._limits, progress.script_heartbeats, plan.processes, own_program=plan.own_program
        )
        self._dump: StackDump | None = None
        self._stall: AttemptStall | None = None
        self.cause: str | None = None
        """After a stall: why the attempt is ended, in one sentence."""
        self.rank: int | None = None
        """The straggler for which the attempt is ended, if known."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables through which the ranks find the heartbeat memory."""
        return self._heartbeats.variables

    @property
    def pids(self) -> Collection[int]:
        """The pids of running py-spy processes, which read the stacks of ranks."""
        return () if self._dump is None else self._dump.pids

    def check(self, ranks: Sequence[SupervisedRank]) -> bool:
        """Check whether the ranks make progress. Return whether the attempt must be ended now.

        Call this once a second.
        """
        live = {rank.index: rank for rank in ranks if rank.status is None}
        if any(rank.start is not None for rank in live.values()):
            return False  # a directory or a program does not answer, for which the attempt waits
        pids = {} if self._plan.launcher else {i: rank.pid for i, rank in live.items()}
        begun = self._heartbeats.poll(pids, sum(rank.log.seen for rank in ranks))
        if self._heartbeats.awaited is not None:
            self._progress.awaited = self._heartbeats.awaited
        if begun is not None and self.cause is None:
            self._report_stall(begun, live)
        if self._dump is None or not self._dump.is_over():
            return False
        self._dump = None
        if self._limits.action != END:
            return False
        if self._heartbeats.stall is None:
            self._write_to_logs("the ranks make progress again, and are not ended", live)
            return False
        return True

    def _report_stall(self, stall: AttemptStall, live: Mapping[int, SupervisedRank]) -> None:
        told = self._heartbeats.sentence or ""
        ends = self._limits.action == END
        self._stall = stall
        self._progress.add_stall(event_of(stall, told, self._heartbeats.sights, ends=ends))
        then = "the job is ended" if ends else "the job continues, because of its stall settings"
        self._write_to_logs(
            f"{told}. The limit is {stall.deadline:g} s: {then}; the stacks follow", live
        )
        self._dump = StackDump(find_spy(self._plan.argv[0], self._plan.env.get("PATH")))
        answers = {s.rank for s in self._heartbeats.sights if s.beat.dumps}
        for rank in live.values():
            for pid in self._programs(rank):
                self._dump.request(pid, rank.log, answers=rank.index in answers)

    def _programs(self, rank: SupervisedRank) -> list[int]:
        if not self._plan.own_program:
            return [rank.pid]
        try:
            below = [process.pid for process in descendants(rank.pid, all_processes())]
        except OSError as error:
            log_line(f"the programs of rank {rank.index} cannot be found: {error}")
            below = []
        return python_programs([rank.pid, *below]) or [rank.pid]

    def _write_to_logs(self, text: str, live: Mapping[int, SupervisedRank]) -> None:
        log_line(text)
        for rank in live.values():
            rank.log.add(f"\n[zerotools: {text}]\n")

    def end(self, ranks: Sequence[SupervisedRank]) -> float:
        """Prepare the end of a stalled attempt after its ranks were asked to save and stop. Send
        SIGCONT to ranks that a signal has stopped.

        Return the number of seconds that the ranks have to save.
        """
        self.cause = self._heartbeats.sentence or "its ranks made no progress"
        self.rank = None if self._stall is None else self._stall.rank
        for rank in ranks:
            # Not reaped yet, so the pid is still of this process. Programs of users:
            # `stop.stop_programs`.
            if rank.status is None and not self._plan.own_program:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGCONT)
        return min(self._plan.grace_seconds, LONGEST_GRACE)

    def ended(self, pids: Collection[int]) -> None:
        """Record that the child processes `pids` have ended."""
        if self._dump is not None:
            self._dump.ended(pids)

    def close(self) -> None:
        """Close the heartbeat files, after the last rank has ended."""
        self._heartbeats.close()


DUMP_SECONDS = 10.0
"""Longest time, in seconds, to wait until the stacks of all processes are written."""
ANSWER_SECONDS = 2.0
_REST_SECONDS = 0.5
"""Seconds to wait for the rest of the output of a rank that prints its stacks."""
MOST_PROGRAMS = 32
_FILE = "stacks-{pid}.txt"
_LARGEST = 256 * 1024


class Log(Protocol):
    """A log to which the stacks of a process are written. `seen` is the number of bytes of
    the process's own output so far, without the notes that `add` writes.
    """

    seen: int

    def add(self, text: str) -> None: ...


def find_spy(program: str, path: str | None) -> str | None:
    """Return the path of the program py-spy, which lies in the directory of the job's
    interpreter `program` or on its PATH. Return None if py-spy is not installed.
    """
    beside = Path(program).with_name("py-spy")
    folders = [beside.parent, *(Path(each) for each in (path or "").split(":") if each)]
    return next((str(f / "py-spy") for f in folders if os.access(f / "py-spy", os.X_OK)), None)


class StackDump:
    """Collects the stacks of several processes. The supervisor's loop continues meanwhile."""

    def __init__(self, spy: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._spy, self._clock = spy, clock
        self._began = clock()
        self._asked: dict[int, tuple[Log, int]] = {}
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, Log]] = {}

    def request(self, pid: int, log: Log, *, answers: bool) -> None:
        """Request the stacks of the process `pid`, and write them to `log`.

        `answers` is True if the process prints its stacks itself when it gets DUMP_SIGNAL;
        otherwise py-spy reads them.
        """
        found = process_state(pid)
        log.add(f"[zerotools: state in the kernel]\n{process_report(pid)}\n")
        stopped = found is not None and found.state in "Tt"
        if answers:
            with suppress(ProcessLookupError):
                before = log.seen
                os.kill(pid, DUMP_SIGNAL)  # a stopped process prints them when it is continued
                if not stopped:
                    self._asked[pid] = (log, before)
                    return
        self._start_py_spy(pid, log)

    def _start_py_spy(self, pid: int, log: Log) -> None:
        if self._spy is None:
            log.add(
                "[zerotools: py-spy is not installed for the job's interpreter, so the stacks "
                "of this process cannot be shown]\n"
            )
            return
        command = (self._spy, "dump", "--nonblocking", "--pid", str(pid))
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(_FILE.format(pid=pid), flags, 0o600), "wb") as out:
                spy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        except OSError as error:
            log.add(f"[zerotools: {self._spy} cannot be started: {error.strerror}]\n")
            return
        self._running[spy.pid] = (spy, pid, log)

    @property
    def pids(self) -> list[int]:
        """The pids of the py-spy processes."""
        return list(self._running)

    def ended(self, pids: Iterable[int]) -> None:
        """Record that the child processes `pids` have ended and were reaped."""
        for pid in pids:
            found = self._running.pop(pid, None)
            if found is not None:
                spy, target, log = found
                spy.returncode = 0  # the supervisor reaps every child itself
                log.add(_read_stacks(target))

    def is_over(self) -> bool:
        """Return whether all processes have printed their stacks or the time for this is over.

        The logs name the processes that have printed nothing.
        """
        passed = self._clock() - self._began
        for pid, (log, before) in list(self._asked.items()):
            if log.seen > before:
                del self._asked[pid]
            elif passed >= ANSWER_SECONDS:
                del self._asked[pid]
                log.add("[zerotools: this process does not answer the signal for its stacks]\n")
                self._start_py_spy(pid, log)
        if not self._running and not self._asked:
            return passed >= _REST_SECONDS
        if passed < DUMP_SECONDS:
            return False
        for spy, target, log in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(spy.pid, signal.SIGKILL)
            spy.returncode = 0
            log.add(
                _read_stacks(target) + f"[zerotools: py-spy took more than {DUMP_SECONDS:g} s]\n"
            )
        self._running.clear()
        return True


def _read_stacks(pid: int) -> str:
    path = Path(_FILE.format(pid=pid))
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode(errors="replace")
        path.unlink()
    except OSError as error:
        return f"[zerotools: the stacks of pid {pid} are lost: {error.strerror}]\n"
    return f"[zerotools: its stacks, by py-spy]\n{text}\n"


def python_programs(pids: Sequence[int]) -> list[int]:
    """Return the processes among `pids` that run Python, so that py-spy can read their stacks."""
    found = []
    for pid in pids:
        try:
            name = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115  # "… (deleted)"
        except OSError:
            continue
        if name.startswith(("python", "pypy")):
            found.append(pid)
    return found[:MOST_PROGRAMS]
