"""Checks that running supervisors still work. A supervisor that does not work is continued or
killed.

A supervisor ends its attempt by itself. But a supervisor that is stopped (SIGSTOP, a debugger) or
sleeps in the kernel enforces no limit, records nothing, and receives no stop request. So each
supervisor is checked regularly:

    its ranks run            the problem is only reported
    its ranks have ended     SIGCONT, so that it records the end and frees the GPUs. If it does not
                             continue in time, it is killed, and its keeper records the end
    a stop was requested     SIGCONT, so that it receives the request. If the attempt is not over in
                             time, the supervisor is killed, and its keeper ends the attempt. If the
                             keeper does not, it is killed too, and the daemon ends the attempt;
                             processes that survive are named

A supervisor without ranks that still works is not disturbed: it is recording how they ended.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotoolsd.attempts import orphan_processes
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.attempts.orphan_processes import OrphanKiller, Traces
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_plan import ENDED, RUN
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.procfs import Process, read_process
from zerotoolsd.supervisor.signal_process import is_of_uid, signal_process
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of

LOOK_SECONDS = 1.0
EVERY = 5
"""An attempt without a stop request is checked only once in this many rounds."""
SILENT_SECONDS = 60.0
"""Seconds without a sign of life after which a supervisor counts as hanging. A working
supervisor gives a sign every ten seconds.
"""
MARGIN_SECONDS = 15.0
"""Seconds that the end of an attempt may take beyond the configured times."""
OVERSEEING = "checking its supervisor"
_STOPPED = "Tt"

log = logging.getLogger(__name__)


@dataclass
class ProcessAccess:
    """Functions that read processes and send signals to them. Tests replace these functions."""

    read: Callable[[int], Process | None] = read_process
    send: Callable[[int, int, signal.Signals, int | None], bool] = signal_process
    find: Callable[[Traces], list[Process]] = orphan_processes.find_attempt_processes
    sign: Callable[[Path], float | None] = lambda run_dir: _sign(run_dir)
    ranks: Callable[[Path], tuple[int, ...]] = lambda run_dir: _ranks(run_dir)


@dataclass
class _Watched:
    supervisor: tuple[int, int]
    keeper: tuple[int, int] | None
    uid: int | None = None
    """The uid that a process must have to get a signal. A program can change its user (sudo)."""
    sign: float | None = None
    sign_seen: float = 0.0
    ended_seen: float | None = None
    """The time since when the supervisor has been stopped although all its ranks have ended;
    None otherwise.
    """
    killed: list[tuple[str, float]] = field(default_factory=list)
    """The processes that were killed because the attempt did not end, each with the time of the
    kill.
    """


class SupervisorWatchdog:
    """Checks that the supervisors of running attempts still work.

    `live` returns these attempts, each with the monotonic time at which it was asked to stop.
    `abandon` reports the end of an attempt with a supervisor that cannot be killed.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[tuple[AttemptRow, float | None]]],
        abandon: Callable[[AttemptRow, Mapping[str, Any]], None],
        guard: Guard,
        *,
        grace_seconds: float,
        kill_seconds: float,
        hands: ProcessAccess | None = None,
    ) -> None:
        self._live = live
        self._abandon = abandon
        self._guard = guard
        self._grace_seconds = grace_seconds
        self._kill_seconds = kill_seconds
        self._hands = hands or ProcessAccess()
        self._watched: dict[str, _Watched] = {}
        self._rounds = 0
        self.silent: dict[int, str] = {}
        """For each job number, the problem of the supervisor in one sentence."""

    def check(self, now: float | None = None) -> None:
        """Check the supervisors of all attempts that are due for a check. `now` is a monotonic
        time in seconds.
        """
        now = time.monotonic() if now is None else now
        live = list(self._live())
        tokens = {attempt.token for attempt, _ in live}
        self._watched = {token: w for token, w in self._watched.items() if token in tokens}
        jobs = {attempt.job_id for attempt, _ in live}
        self.silent = {job: why for job, why in self.silent.items() if job in jobs}
        every = not self._rounds % EVERY
        self._rounds += 1
        for attempt, asked in live:
            if every or asked is not None:
                with self._guard(attempt.job_id, OVERSEEING) as reach:
                    reach()
                    self._check_attempt(attempt, asked, now)

    def _check_attempt(self, attempt: AttemptRow, asked: float | None, now: float) -> None:
        watched = self._watched.get(attempt.token) or _identities(attempt)
        if watched is None:  # it has not come so far, or its directory is gone
            return
        self._watched[attempt.token] = watched
        supervisor = self._living_process(watched.supervisor)
        keeper = None if watched.keeper is None else self._living_process(watched.keeper)
        why = self._what_is_wrong(attempt, watched, supervisor, now)
        self._set_silent(attempt.job_id, why)
        is_stuck = self._is_stuck(attempt, supervisor)
        if not is_stuck:
            watched.ended_seen = None
        elif watched.ended_seen is None:
            watched.ended_seen = now
        if supervisor is None or asked is not None or is_stuck:
            # Also continue a keeper that was stopped alone: it must notice the end of its
            # supervisor.
            for process in (supervisor, keeper):
                if process is not None and process.state in _STOPPED:
                    log.warning("job %d: pid %d is stopped: SIGCONT", attempt.job_id, process.pid)
                    self._send(process, signal.SIGCONT, watched.uid)
        if asked is not None:
            self._kill_if_overdue(attempt, watched, (supervisor, keeper), asked, now)
        elif watched.ended_seen is not None:  # it needs no grace
            since = watched.ended_seen - self._grace_seconds
            self._kill_if_overdue(attempt, watched, (supervisor, keeper), since, now)

    def _is_stuck(self, attempt: AttemptRow, supervisor: Process | None) -> bool:
        """Return whether the supervisor is stopped although all of its ranks have ended.

        The ranks are zombies then, and only the supervisor can read their exit statuses.
        """
        if supervisor is None or supervisor.state not in _STOPPED:
            return False
        ranks = self._hands.ranks(Path(attempt.run_dir))
        found = (self._hands.read(pid) for pid in ranks)
        lives = any(p is not None and p.parent == supervisor.pid and not p.is_over for p in found)
        return bool(ranks) and not lives

    def _living_process(self, identity: tuple[int, int]) -> Process | None:
        pid, start = identity
        found = self._hands.read(pid)
        if found is None or found.start_ticks != start or found.is_over:
            return None
        return found

    def _send(self, process: Process, number: signal.Signals, uid: int | None) -> None:
        with suppress(PermissionError):  # of another user: it is named in the record of the end
            self._hands.send(process.pid, process.start_ticks, number, uid)

    def _what_is_wrong(
        self, attempt: AttemptRow, watched: _Watched, supervisor: Process | None, now: float
    ) -> str | None:
        if supervisor is None:
            return None
        sign = self._hands.sign(Path(attempt.run_dir))
        if sign != watched.sign:
            watched.sign, watched.sign_seen = sign, now
        if supervisor.state in _STOPPED:
            return (
                f"its supervisor, pid {supervisor.pid}, is stopped: progress is not recorded and "
                f"limits are not enforced until it continues (kill -CONT {supervisor.pid})"
            )
        silent = now - watched.sign_seen
        if silent < SILENT_SECONDS or _follows(Path(attempt.run_dir)):
            return None
        return (
            f"its supervisor, pid {supervisor.pid}, has given no sign of life for {silent:.0f} s "
            f"(state {supervisor.state})"
        )

    def _set_silent(self, job_id: int, why: str | None) -> None:
        if why is None:
            self.silent.pop(job_id, None)
            return
        if job_id not in self.silent:
            log.warning("job %d: %s", job_id, why)
        self.silent[job_id] = why

    def _kill_if_overdue(
        self,
        attempt: AttemptRow,
        watched: _Watched,
        who: tuple[Process | None, Process | None],
        asked: float,
        now: float,
    ) -> None:
        supervisor, keeper = who
        wait = MARGIN_SECONDS + self._kill_seconds
        if now - asked < self._grace_seconds + self._kill_seconds + wait:
            return
        if watched.killed and now - watched.killed[-1][1] < wait:
            return
        killed = {name for name, _ in watched.killed}
        if supervisor is not None and "supervisor" not in killed:
            if supervisor.state not in f"{_STOPPED}D" and not self._has_ranks(attempt, who):
                return
            self._kill("supervisor", attempt, watched, supervisor, now)
        elif keeper is not None and "keeper" not in killed:
            self._kill("keeper", attempt, watched, keeper, now)
        elif killed:
            self._give_up(attempt)

    def _has_ranks(self, attempt: AttemptRow, who: tuple[Process | None, Process | None]) -> bool:
        ours = {process.pid for process in who if process is not None}
        traces = orphan_processes.traces_of(Path(attempt.run_dir), attempt.token)
        return any(process.pid not in ours for process in self._hands.find(traces))

    def _kill(
        self, name: str, attempt: AttemptRow, watched: _Watched, process: Process, now: float
    ) -> None:
        log.error(
            "job %d: its %s, pid %d (state %s), did not end the attempt in time: SIGKILL",
            *(attempt.job_id, name, process.pid, process.state),
        )
        watched.killed.append((name, now))
        self._send(process, signal.SIGKILL, watched.uid)

    def _give_up(self, attempt: AttemptRow) -> None:
        """Kill the attempt's remaining processes. Report the end with those that survive."""
        traces, hands = (
            orphan_processes.traces_of(Path(attempt.run_dir), attempt.token),
            self._hands,
        )

        def kill(process: Process, uid: int | None) -> bool:
            return hands.send(process.pid, process.start_ticks, signal.SIGKILL, uid)

        sweep = OrphanKiller(traces, kill=kill, find=hands.find)
        if sweep.kill_remaining():
            cause = "its supervisor did not end the attempt, and could not be killed"
            record = {"outcome": lifecycle.KILLED, "cause": cause}
            self._abandon(attempt, {**record, "unkillable": sweep.left_behind()})


def _identities(attempt: AttemptRow) -> _Watched | None:
    run_dir = Path(attempt.run_dir)
    try:
        with opened_run_directory(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
    except (OSError, ValueError):
        return None
    uid = owner_of(run_dir)
    supervisor, keeper = (_owned(tree, uid) for tree in (run, run.get("keeper")))
    if supervisor is None or run.get("token") != attempt.token:
        return None
    return _Watched(supervisor, keeper, uid, sign_seen=time.monotonic())


def _owned(tree: object, uid: int | None) -> tuple[int, int] | None:
    """Return (pid, start time in clock ticks) of the process in the entry `tree` of a record; None
    if the entry is invalid or the process does not belong to the user `uid`.
    """
    found = orphan_processes.process_identity(tree)
    return None if found is None or (uid is not None and not is_of_uid(found[0], uid)) else found


def _sign(run_dir: Path) -> float | None:
    """Return a value that changes as long as the supervisor works; None if it is unknown.

    The value is the modification time of a file. It is compared only with earlier values, not with
    a clock.
    """
    try:
        with opened_run_directory(run_dir) as base:
            return (base / RUN).lstat().st_mtime
    except OSError:
        return None


def _ranks(run_dir: Path) -> tuple[int, ...]:
    """Return the pids of the ranks from the attempt's `run.json`."""
    try:
        with opened_run_directory(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
    except (OSError, ValueError):
        return ()
    lines = run.get("ranks")
    if not isinstance(lines, list):
        return ()
    found = [line.get("pid") for line in lines if isinstance(line, dict)]
    return tuple(pid for pid in found if type(pid) is int)


def _follows(run_dir: Path) -> bool:
    """Return whether all ranks have finished, and the commands that follow them (such as uploads)
    are still running.
    """
    try:
        with opened_run_directory(run_dir) as base:
            return os.path.lexists(base / ENDED)
    except OSError:
        return False
