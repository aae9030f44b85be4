"""Watches the supervisors of running attempts in the event loop, through their pidfds.

The module also writes stop requests into run directories (`StopRequestFiles`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.attempts import attempt_status, last_report, orphan_processes
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN
from zerotoolsd.attempts.backends.fork_server import WarmSupervisor
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import Spawned, SupervisorSpawner
from zerotoolsd.attempts.delay_starts import StartBackoff
from zerotoolsd.queue import clocks, lifecycle
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_plan import REQUEST, RUN
from zerotoolsd.supervisor.signal_process import send_signal
from zerotoolsd.supervisor.stop.stop_request_file import write_request
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of
from zerotoolsd.users.run_as_user import NOT_DROPPED
from zerotoolsd.users.start_as_submitter import JobUser

STARTING_SECONDS = 0.1
UNREADABLE_SECONDS = 1.0
"""Seconds between two tries to read or write a run directory that is not accessible."""

FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.005, 0.5
"""Seconds between two checks whether killed processes have ended: the first interval, and the
longest one.
"""

HURRIED_SECONDS = 2.0
"""Seconds that systemd has to start an attempt that must already stop."""

SETTLING = "checking its state"
ENDING_STRAYS = "killing its leftover processes"
GIVING_UP = "cancelling its start"

log = logging.getLogger(__name__)

OnOver = Callable[[AttemptRow, Mapping[str, Any]], None]
"""A function that is called with an attempt that has ended, and the record of its supervisor or
a substitute.
"""
Guard = Callable[[int, str], AbstractContextManager[Callable[[], None]]]
"""A function of (job, activity) that returns a context in which an error affects only this job."""
OnRunning = Callable[[AttemptRow, Moment], None]
"""A function that is called with an attempt that systemd has started, and the start time of its
supervisor.
"""


@dataclass
class _Live:
    """A process that is watched: the supervisor of an attempt, or a `systemd-run` that asks systemd
    to start a supervisor.
    """

    attempt: AttemptRow
    pidfd: int
    spawned: Spawned | None
    late: asyncio.TimerHandle | None = None

    @property
    def is_request(self) -> bool:
        return self.spawned is not None and self.spawned.request is not None


class AttemptWatcher:
    """Watches attempts, and reports each one that has ended. Call its methods only in the
    thread of the event loop.
    """

    def __init__(
        self,
        *,
        on_over: OnOver,
        guard: Guard,
        pending: StartBackoff,
        spawner: SupervisorSpawner | None = None,
        kill_seconds: float = 30.0,
    ) -> None:
        """A process that survives SIGKILL for `kill_seconds` is recorded as a leftover."""
        self._kill_seconds = kill_seconds
        self.on_over = on_over
        self._guard = guard
        self._pending = pending
        self._spawner = spawner or SupervisorSpawner(CHILDREN)
        self.on_running: OnRunning = lambda attempt, began: None
        """A function that is called if an attempt is still running after a restart of the
        daemon.
        """
        self._unwatched: dict[str, Spawned] = {}
        """Processes of attempts that cannot be watched now, because no file descriptor is
        available, by token.
        """
        self._live: dict[str, _Live] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._stops = StopRequestFiles()
        self.held: dict[int, str] = {}
        """For each job number, the reason why the status of its attempt is unknown now."""

    def start(
        self,
        attempt: AttemptRow,
        user: JobUser | None = None,
        limits: Mapping[str, int] | None = None,
        warm: WarmSupervisor | None = None,
    ) -> None:
        """Start the supervisor of a prepared attempt, as the user `user` (None: the user of the
        daemon).

        `warm` is a supervisor that a fork server has already started. For `limits` see
        `SupervisorSpawner.spawn`. If this raises OSError or NotReady, no process of the attempt is
        running.
        """
        spawned = Spawned(warm) if warm else self._spawner.spawn(attempt, user, limits)
        if (before := self._unwatched.pop(attempt.token, None)) and before.request is not None:
            before.request.close()
        try:
            live = _Live(attempt, spawned.open_pidfd(), spawned)
            self._track(live)
            if spawned.request is not None:
                self._kill_later(live, spawned.request.seconds)
        except OSError as error:
            # The attempt need not be watched: it is found again by its directory.
            self._unwatched[attempt.token] = spawned
            self._hold(attempt, f"its supervisor cannot be watched: {error.strerror}")

    def _kill_later(self, live: _Live, seconds: float) -> None:
        """Kill a `systemd-run` after `seconds`. The run directory then shows whether it has
        started a supervisor.
        """
        if live.late is not None:
            live.late.cancel()
        live.late = asyncio.get_running_loop().call_later(seconds, _kill, live.pidfd)

    def watches(self, attempt: AttemptRow) -> bool:
        """Return whether the watcher will report the end of the attempt."""
        return attempt.token in self._live or attempt.token in self._later

    def has_supervisor(self, attempt: AttemptRow) -> bool:
        """Return whether the watcher knows a running supervisor of the attempt. A `systemd-run`
        that may still start one does not count.
        """
        live = self._live.get(attempt.token)
        return live is not None and not live.is_request

    def settle(self, attempt: AttemptRow) -> None:
        """Read the status of the attempt from its run directory, and act on it as `adopt` does."""
        self._later.pop(attempt.token, None)
        with self._guard(attempt.job_id, SETTLING) as reach:
            reach()
            self.adopt(attempt, attempt_status.run_dir_status(Path(attempt.run_dir), attempt.token))

    def adopt(self, attempt: AttemptRow, found: attempt_status.AttemptStatus) -> None:
        """Act on the status `found` of the attempt: watch a running attempt, report the end of an
        ended one, and start one that never started again later. If the status is not clear, read it
        again later.
        """
        self.held.pop(attempt.job_id, None)
        match found:
            case attempt_status.Over(record):
                record = orphan_processes.check_user_record(Path(attempt.run_dir), record)
                self._report_end(attempt, last_report.with_reports(attempt, record))
            case attempt_status.Alive(pidfd, began):
                self._follow(attempt, pidfd, began)
            case attempt_status.Starting():
                self._settle_later(attempt)
            case attempt_status.NeverStarted():
                why = self._spawner.why_not(attempt.token) or last_report.why_not_started(attempt)
                self._pending.put_off(attempt.job_id, why)
            case attempt_status.Gone(cause, noted):
                lost: dict[str, Any] = {"outcome": lifecycle.LOST, "cause": f"lost: {cause}"}
                lost["rebooted"] = cause == attempt_status.RESTARTED
                record = {
                    **last_report.last_seen(attempt),
                    **last_report.reports_as_record(attempt),
                    **lost,
                }
                if noted is not None and noted.get("outcome") != lifecycle.LOST:
                    record |= orphan_processes.check_user_record(Path(attempt.run_dir), noted)
                self._end_strays(attempt, record)
            case attempt_status.Unreadable(cause):
                self._hold(attempt, cause)

    def _follow(self, attempt: AttemptRow, pidfd: int, began: Moment | None) -> None:
        spawned = self._unwatched.get(attempt.token)
        is_child = spawned is not None and spawned.request is None
        try:
            self._track(_Live(attempt, pidfd, spawned if is_child else None))
        except OSError as error:
            self._hold(attempt, f"its supervisor cannot be watched: {error.strerror}")
            return
        self._unwatched.pop(attempt.token, None)
        if spawned is not None and not is_child:
            # The process has done its work, and without a descriptor it cannot be waited for.
            spawned.process.kill()
            self._ended(attempt.token, spawned)
        self._spawner.forget(attempt.token)
        try:
            self.on_running(attempt, began or clocks.read_clocks())
        except sqlite3.OperationalError as error:
            log.error("job %d: its start cannot be recorded yet: %s", attempt.job_id, error)
        if (reason := self._stops.pop_stored(attempt)) is not None:
            self.request_stop(attempt, reason)

    def _ended(self, token: str, spawned: Spawned) -> None:
        spawned.process.wait()
        if spawned.request is not None:
            self._spawner.ended(token, spawned.request)

    def _hold(self, attempt: AttemptRow, why: str) -> None:
        self.held[attempt.job_id] = f"its state is not known at the moment: {why}"
        self._later_call(UNREADABLE_SECONDS, self.settle, attempt)

    def _settle_later(self, attempt: AttemptRow) -> None:
        self._later_call(STARTING_SECONDS, self.settle, attempt)

    def _later_call(
        self, seconds: float, call: Callable[..., None], attempt: AttemptRow, *more: object
    ) -> None:
        handle = asyncio.get_running_loop().call_later(seconds, call, attempt, *more)
        self._later[attempt.token] = handle

    def give_up(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Make sure that an unstarted attempt never starts, and report `record` as its end.

        If a supervisor has started the attempt meanwhile, the attempt continues and is
        watched.
        """
        self._later.pop(attempt.token, None)
        with self._guard(attempt.job_id, GIVING_UP) as reach:
            reach()
            self._give_up(attempt, record)

    def _give_up(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        fenced = {"token": attempt.token, **record}
        try:
            ended = attempt_status.fence_unstarted_attempt(Path(attempt.run_dir), fenced)
        except OSError as error:
            log.error("%s: %s", attempt.run_dir, error.strerror)
            self.held[attempt.job_id] = f"{record['cause']}; {attempt.run_dir}: {error.strerror}"
            self._later_call(UNREADABLE_SECONDS, self.give_up, attempt, record)
            return
        self.held.pop(attempt.job_id, None)
        if ended:
            self._report_end(attempt, fenced)
        else:
            self._settle_later(attempt)

    def _end_strays(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Kill the remaining processes of an attempt without a supervisor. After the last one has
        ended, or at the latest after `kill_seconds`, report `record` as the end of the attempt.
        """
        traces = orphan_processes.traces_of(Path(attempt.run_dir), attempt.token)
        deadline = time.monotonic() + self._kill_seconds
        self._sweep(
            attempt, record, orphan_processes.OrphanKiller(traces), deadline, FIRST_LOOK_SECONDS
        )

    def _sweep(
        self,
        attempt: AttemptRow,
        record: Mapping[str, Any],
        sweep: orphan_processes.OrphanKiller,
        deadline: float,
        pause: float,
    ) -> None:
        self._later.pop(attempt.token, None)
        with self._guard(attempt.job_id, ENDING_STRAYS) as reach:
            reach()
            is_over = not sweep.kill_remaining()
            if not is_over and time.monotonic() < deadline:
                self.held[attempt.job_id] = "killing leftover processes of its last attempt"
                again = min(2 * pause, LONGEST_LOOK_SECONDS)
                self._later_call(pause, self._sweep, attempt, record, sweep, deadline, again)
                return
            self.held.pop(attempt.job_id, None)
            ended = len(sweep.found) - len(sweep.alive)
            said = f"; {ended} of its processes were ended" if ended else ""
            whole = {**record, "cause": f"{record.get('cause')}{said}"}
            if sweep.alive:
                whole["unkillable"] = sweep.left_behind()
            else:
                sweep.forget(Path(attempt.run_dir))
                # The kernel keeps a group for a moment after its last process.
                loop = asyncio.get_running_loop()
                loop.call_later(LONGEST_LOOK_SECONDS, sweep.forget, Path(attempt.run_dir))
            self._report_end(attempt, whole)

    def _track(self, live: _Live) -> None:
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(live.pidfd, self._supervisor_ended, live.attempt.token)
        except OSError:
            os.close(live.pidfd)
            raise
        self._live[live.attempt.token] = live

    def _supervisor_ended(self, token: str) -> None:
        live = self._live.pop(token)
        self._forget(live)
        if live.spawned is not None:
            self._ended(token, live.spawned)
            if live.spawned.process.returncode == NOT_DROPPED and live.spawned.request is None:
                cause = last_report.why_not_started(live.attempt)
                self.give_up(live.attempt, {"outcome": lifecycle.BAD_JOB, "cause": cause})
                return
        self.settle(live.attempt)

    def _forget(self, live: _Live) -> None:
        if live.late is not None:
            live.late.cancel()
        asyncio.get_running_loop().remove_reader(live.pidfd)
        os.close(live.pidfd)

    def request_stop(
        self, attempt: AttemptRow, reason: str, grace_seconds: float | None = None
    ) -> None:
        """Ask the attempt to save and stop within `grace_seconds` (None: the configured time).

        After this time the supervisor kills the ranks. A second request can shorten the time.
        """
        self._stops.write(attempt, reason, grace_seconds)
        live = self._live.get(attempt.token)
        if live is not None and live.is_request:
            self._stops.store(attempt, reason)
            self._kill_later(live, HURRIED_SECONDS)
            return
        # Before run.json a SIGTERM would end the supervisor itself; it finds the request later.
        if live is not None and has_begun(Path(attempt.run_dir)):
            send_signal(live.pidfd, signal.SIGTERM, owner_of(Path(attempt.run_dir)))

    def end_at_once(self, attempt: AttemptRow, reason: str) -> None:
        """End the grace period of the attempt now, so that its supervisor kills the ranks. `reason`
        is the reason of the stop.
        """
        self.request_stop(attempt, reason, 0.0)

    def request_again(self) -> bool:
        """Write the stop requests that were not written before. Return whether all are written."""
        for attempt, reason in self._stops.unwritten:
            if self.watches(attempt):
                self.request_stop(attempt, reason)
            else:
                self._stops.drop_unwritten(attempt)
        return not self._stops.unwritten

    def live(self) -> list[tuple[AttemptRow, float | None]]:
        """Return the attempts with a running supervisor, as (attempt, time). The time is the
        monotonic time, in seconds, at which the attempt was asked to stop, or None if it was not
        asked.
        """
        found = [each.attempt for each in self._live.values() if not each.is_request]
        return [(attempt, self._stops.requested_at(attempt)) for attempt in found]

    def abandon(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Report `record` as the end of an attempt with a supervisor that survives SIGKILL."""
        live = self._live.pop(attempt.token)
        self._forget(live)
        _disown(live.spawned)
        self._report_end(
            attempt,
            {**last_report.last_seen(attempt), **last_report.reports_as_record(attempt), **record},
        )

    def _report_end(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        self._stops.forget(attempt)
        if orphan_processes.has_group_of_root(
            Path(attempt.run_dir)
        ):  # its supervisor is about to leave it
            loop = asyncio.get_running_loop()
            loop.call_later(LONGEST_LOOK_SECONDS, orphan_processes.remove_group, attempt.token)
        self.on_over(attempt, record)

    def close(self) -> None:
        """Stop watching. The attempts continue to run."""
        for live in self._live.values():
            self._forget(live)
            _disown(live.spawned)
        for handle in self._later.values():
            handle.cancel()
        for spawned in self._unwatched.values():
            _disown(spawned)
        self._live.clear()
        self._later.clear()
        self._unwatched.clear()


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _disown(spawned: Spawned | None) -> None:
    if spawned is not None:
        spawned.disown()


class StopRequestFiles:
    """The stop requests of attempts, keyed by token, also those that no supervisor has received."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._stored: dict[str, str] = {}
        self._unwritten: dict[str, tuple[AttemptRow, str, str]] = {}
        """Stop requests that could not be written, each with its attempt, its reason, and the
        error.
        """

    def write(self, attempt: AttemptRow, reason: str, grace_seconds: float | None = None) -> None:
        """Write a stop request into the attempt's run directory, or add it to `unwritten`."""
        self._since.setdefault(attempt.token, time.monotonic())
        before = self._unwritten.pop(attempt.token, None)
        try:
            with opened_run_directory(Path(attempt.run_dir)) as base:
                write_request(base, reason, grace_seconds)
        except OSError as error:
            why = f"{Path(attempt.run_dir) / REQUEST}: {error.strerror}"
            if before is None or before[2] != why:
                log.error("job %d: the request to stop cannot be sent yet: %s", attempt.job_id, why)
            self._unwritten[attempt.token] = (attempt, reason, why)
            self.store(attempt, reason)

    def store(self, attempt: AttemptRow, reason: str) -> None:
        """Keep a stop request until the supervisor of the attempt is known."""
        self._stored[attempt.token] = reason

    def pop_stored(self, attempt: AttemptRow) -> str | None:
        """Remove the stop request that `store` has kept, and return its reason; None if there is
        no such request.
        """
        return self._stored.pop(attempt.token, None)

    @property
    def unwritten(self) -> list[tuple[AttemptRow, str]]:
        """Return the attempts with a stop request that could not be written, and its reason."""
        return [(attempt, reason) for attempt, reason, _ in self._unwritten.values()]

    def drop_unwritten(self, attempt: AttemptRow) -> None:
        """Forget a stop request that could not be written.

        Call this if the attempt has ended, or if the daemon no longer watches the attempt. In the
        second case the daemon repeats the request when it finds the attempt again.
        """
        self._unwritten.pop(attempt.token, None)

    def requested_at(self, attempt: AttemptRow) -> float | None:
        """Return the time of the first stop request to the attempt, in seconds of the monotonic
        clock. Return None if there was no request.
        """
        return self._since.get(attempt.token)

    def forget(self, attempt: AttemptRow) -> None:
        """Forget the time of the first stop request to an attempt that has ended."""
        self._since.pop(attempt.token, None)


def has_begun(run_dir: Path) -> bool:
    """Return whether the supervisor of the attempt already treats SIGTERM as a stop request,
    because it has written `run.json`.

    Return True if the run directory no longer exists.
    """
    try:
        with opened_run_directory(run_dir) as base:
            return os.path.lexists(base / RUN) or not base.exists()
    except OSError:
        return False
