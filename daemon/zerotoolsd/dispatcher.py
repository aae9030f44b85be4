"""The daemon's one loop: it alone changes the state of jobs.

All of it runs in the event loop's thread, and no step between the commit of `launching` and that
of `running` gives way to another. What it must not lose is in the store before it acts; what it
did is found again by the run directories.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs import states
from zerotoolsd import crashpoints
from zerotoolsd.attempts import ending, last_report, launch, reattach
from zerotoolsd.attempts.watcher import OnOver, Watcher
from zerotoolsd.cleaning.cleaner import Cleaner
from zerotoolsd.config import Config
from zerotoolsd.machine import SnapshotCache
from zerotoolsd.queue import clocks, lifecycle, parking, time_limit
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import Admit, Cancel, Hold, Resume, Retry, Standing, Started
from zerotoolsd.queue.parking import JobGuard, Touch
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow, JobRow, Lease, UnreadableSpec
from zerotoolsd.queue.scheduler import Start
from zerotoolsd.queue.store import Store

POLL_SECONDS = 2.0
"""How often the GPUs are looked at while a job waits for them."""
IDLE_SECONDS = 60.0
FAULT_SECONDS = 1.0
"""How often what could not be done is tried again."""

log = logging.getLogger(__name__)


class Dispatcher:
    """Jobs from the queue to their end."""

    def __init__(
        self,
        *,
        state_dir: Path,
        store: Store,
        config: Config,
        machine: SnapshotCache,
        command: launch.RankCommand = launch.trainer_command,
        umask: int = 0o022,
        touch: Touch = lambda job_id, doing: None,
    ) -> None:
        self.state_dir = state_dir
        self.store = store
        self.config = config
        self.machine = machine
        self.waits: Mapping[int, str] = {}
        self.changed = asyncio.Event()
        self._command = command
        self._umask = umask
        self._policy = config.retry.policy()
        self._parking = JobGuard(self.jobs_dir, self._hold, touch)
        self._guard = self._parking.guard
        self._placement = QueuePlacement(store, self._parking, config.limits)
        self._watcher = Watcher(self._over, self._guard)
        self._left: list[int] = []
        """Jobs whose last attempt is to be taken up."""
        self._wake = asyncio.Event()
        self._expired: set[str] = set()
        self._unsettled: dict[str, tuple[AttemptRow, Mapping[str, Any]]] = {}
        self.cleaner = Cleaner(state_dir, store, self.announce)

    @property
    def jobs_dir(self) -> Path:
        """Where the run directories are, by job id."""
        return self.state_dir / "jobs"

    async def run(self, stop: asyncio.Event) -> None:
        """Take up what runs, then schedule until `stop` is set. Jobs go on afterwards."""
        self._recover()
        stopping = asyncio.create_task(stop.wait())
        cleaning = asyncio.create_task(self.cleaner.keep_up(self.config.retention))
        try:
            while not stop.is_set():
                self._wake.clear()
                pause = await self._guarded_step()
                waking = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    (stopping, waking), timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                waking.cancel()
        finally:
            stopping.cancel()
            cleaning.cancel()
            self._watcher.close()

    async def _guarded_step(self) -> float:
        try:
            return await self._step()
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now, next try in %g s: %s", FAULT_SECONDS, error)
        except Exception:  # no job's, or it would be held; the jobs that run go on meanwhile
            log.exception("a defect in zerotoolsd: next try in %g s", FAULT_SECONDS)
        return FAULT_SECONDS

    async def _step(self) -> float:
        """One round; returns the seconds until the next is due by itself."""
        all_held = self._parking.settle()
        self._take_up_left()
        for attempt, record in list(self._unsettled.values()):
            self._over(attempt, record)
        pauses = [IDLE_SECONDS, *self._retry_due(time.time()), *self._stop_expired(clocks.now())]
        queued = list(reversed(self.store.jobs([states.QUEUED])))
        if queued:
            pauses.append(await self._schedule(queued))
        else:
            self.waits = {}
        if self._release_freed() or self._unsettled or not all_held:
            pauses.append(FAULT_SECONDS)
        return min(pauses)

    def _retry_due(self, now: float) -> list[float]:
        """Queue the jobs whose wait is over; the seconds that the others still wait."""
        waits: list[float] = []
        for job in self.store.jobs([states.WAITING_RETRY]):
            with self._guard(job.id, parking.RETRYING) as reach:
                reach()
                wait = (job.standing.eligible_at or now) - now
                # A wait longer than the longest means that the clock was set back.
                if 0 < wait <= self._policy.most_seconds:
                    waits.append(wait)
                else:
                    self._move(job, self._advance(job, Retry()), states.RETRY)
        return waits

    def _stop_expired(self, now: Moment) -> list[float]:
        """Ask jobs whose time limit is over to save and stop; the seconds that others have left."""
        left: list[float] = []
        for job in self.store.jobs([states.RUNNING]):
            with self._guard(job.id, parking.TIMING) as reach:
                reach()
                attempts = self.store.attempts(job.id)
                seconds = time_limit.seconds_left(job.reading.spec, attempts, now)
                if seconds is not None and seconds > 0:
                    left.append(seconds)
                elif seconds is not None and attempts[-1].token not in self._expired:
                    self._expired.add(attempts[-1].token)
                    self._watcher.request_stop(attempts[-1], time_limit.REASON)
        return left

    async def _schedule(self, queued: list[JobRow]) -> float:
        jobs = {job.id: job for job in queued}
        requests = self._placement.requests_of(queued)
        wants_gpus = any(request.gpus is not None for request in requests)
        snapshot = await self.machine.snapshot() if wants_gpus else None
        decisions = self._placement.decide(requests, snapshot)
        self.waits = decisions.waits
        for start in decisions.starts:
            # It may have been cancelled while the snapshot was taken.
            if self.store.job(start.job_id).state == states.QUEUED:
                with self._guard(start.job_id, parking.STARTING) as reach:
                    reach()
                    self._launch(jobs[start.job_id], start)
        return POLL_SECONDS if wants_gpus and decisions.waits else IDLE_SECONDS

    def _launch(self, job: JobRow, start: Start) -> None:
        attempts = self.store.attempts(job.id)
        number = len(attempts) + 1
        found = last_report.latest_checkpoint(job, attempts)
        attempt = AttemptRow(
            job_id=job.id,
            number=number,
            token=secrets.token_hex(16),
            state=LAUNCHING,
            run_dir=str(self.jobs_dir / str(job.id) / f"attempt-{number}"),
            gpu_uuids=start.gpu_uuids,
            resumed_from=str(found[1]) if found else job.spec.resume_from,
            started=None,
            ended=None,
            result=None,
        )
        after = self._advance(job, Admit())
        with self.store.change(job, after, states.ADMIT, now=time.time(), attempt=number) as change:
            change.add_attempt(attempt)
        self._published(job, after)
        crashpoints.reach(crashpoints.LAUNCHING_COMMITTED)
        self._begin(attempt, self._over)

    def _begin(self, attempt: AttemptRow, failed: OnOver) -> None:
        """Start an attempt that is committed as launching; `failed` is told where that fails."""
        job = self.store.job(attempt.job_id)
        before = self.store.attempts(job.id)[: attempt.number - 1]
        try:
            known = last_report.checkpoints_before(before)
            launch.prepare(job, attempt, self.config, self._command, self._umask, known)
            self._watcher.start(attempt)
        except OSError as error:
            cause = f"could not be started: {error.strerror}: {error.filename}"
            failed(attempt, {"outcome": lifecycle.CRASHED, "cause": cause})
            return
        except UnreadableSpec:
            raise
        except ZerotoolsError as error:
            failed(attempt, {"outcome": lifecycle.BAD_JOB, "cause": str(error)})
            return
        crashpoints.reach(crashpoints.SUPERVISOR_SPAWNED)
        self._mark_running(attempt, clocks.now())

    def _mark_running(self, attempt: AttemptRow, began: Moment) -> None:
        job = self.store.job(attempt.job_id)
        if attempt.state != LAUNCHING and job.state != states.LAUNCHING:
            return
        after = self._advance(job, Started())
        now, number = time.time(), attempt.number
        with self.store.change(job, after, states.STARTED, now=now, attempt=number) as change:
            if attempt.state == LAUNCHING:
                change.attempt_started(number, began)
        self._published(job, after)

    def why_it_waits(self, job: JobRow) -> str | None:
        """What the job waits for: one sentence, where there is something to say."""
        if job.state == states.QUEUED:
            return self.waits.get(job.id)
        if job.state == states.RUNNING and self._is_expired(job):
            return "its time limit is over: it saves and stops"
        return self._watcher.held.get(job.id) if job.state in states.ACTIVE else None

    def _is_expired(self, job: JobRow) -> bool:
        return bool(self._expired) and self.store.attempts(job.id)[-1].token in self._expired

    def cancel(self, job: JobRow, who: str) -> None:
        """End the job. Raises NotAllowed: it is over."""
        event = Cancel(who=who, live=bool(self.store.open_tokens(job.id)))
        after = self._advance(job, event)
        if job.state != states.STOPPING:
            self._move(job, after, lifecycle.name_of(job.standing, event))
            crashpoints.reach(crashpoints.CANCEL_COMMITTED)
        if after.state == states.STOPPING and job.state == states.HELD:
            self._left.append(job.id)
            self._take_up_left()
        elif after.state == states.STOPPING:
            with self._guard(job.id, parking.STOPPING) as reach:
                reach()
                self._watcher.request_stop(self.store.attempts(job.id)[-1], "cancel")

    def go_on(self, job: JobRow) -> None:
        """Take a held job up where it was held. Raises NotAllowed: it is not held."""
        event = Resume(live=bool(self.store.open_tokens(job.id)))
        self._move(job, self._advance(job, event), lifecycle.name_of(job.standing, event))
        if event.live:
            self._left.append(job.id)
            self._take_up_left()

    def _hold(self, job_id: int, why: str) -> None:
        """Set the job aside; one that is to end is ended, whatever its record says."""
        job = self.store.job(job_id)
        if job.state in states.TERMINAL:
            return
        if job.state == states.STOPPING and self._end_by_force(job, why):
            return
        after = self._advance(job, Hold(why=why))
        if after != job.standing:
            self._move(job, after, states.HOLD)

    def _end_by_force(self, job: JobRow, why: str) -> bool:
        """Kill what is left of a cancelled job and be done with it; whether that was possible."""
        try:
            tokens = self.store.open_tokens(job.id)
            strays = [process for token in tokens for process in reattach.kill_strays(token)]
            record = ending.forced_record(strays, why)
            after = self._advance(job, ending.end_event(job, record, asked=False))
            now = time.time()
            with self.store.change(job, after, states.CRASHED, now=now) as change:
                change.open_attempts_ended(now, record, ending.held_by(record))
        except sqlite3.OperationalError:
            raise
        except Exception:  # it is held instead
            log.exception("job %d cannot be ended by force", job.id)
            return False
        self._published(job, after)
        return True

    def _over(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Commit an attempt's end; what cannot be committed now is tried again."""
        crashpoints.reach(crashpoints.END_SEEN)
        if attempt.token not in self._unsettled:
            self._unsettled[attempt.token] = (attempt, record)
            self._wake.set()
        try:
            with self._guard(attempt.job_id, parking.ENDING) as reach:
                reach()
                self._commit_end(attempt, record)
        except sqlite3.OperationalError as error:
            log.error("the end of job %d cannot be recorded yet: %s", attempt.job_id, error)
        else:
            del self._unsettled[attempt.token]
            self._expired.discard(attempt.token)

    def _commit_end(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        job, now = self.store.job(attempt.job_id), time.time()
        if attempt.token not in self.store.open_tokens(job.id):
            return  # it was ended by force
        end = ending.end_event(job, record, asked=attempt.token in self._expired)
        after, kind = self._advance(job, end), lifecycle.name_of(job.standing, end)
        when = time_limit.end_of(record, attempt.began, now)
        with self.store.change(
            job, after, kind, now=now, attempt=attempt.number, ended=when
        ) as change:
            change.attempt_ended(attempt.number, when, record, ending.held_by(record))
        self._published(job, after)

    def _release_freed(self) -> bool:
        """Free the GPUs whose last process is gone at last; whether some are still held."""
        held = [lease for lease in self.store.leases() if lease.held_by is not None]
        for lease in held:
            with self._guard(lease.job_id, parking.RELEASING) as reach:
                reach()
                self._release_if_free(lease)
        return bool(held)

    def _release_if_free(self, lease: Lease) -> None:
        attempt = self.store.attempts(lease.job_id)[lease.attempt - 1]
        stuck = (attempt.result or {}).get("unkillable", ())
        if not any(ending.is_still_alive(process) for process in stuck):
            self.store.release(lease, time.time())

    def _recover(self) -> None:
        """Note every attempt that the last daemon left; the first round takes them up."""
        wanted = (*states.ACTIVE, states.HELD)
        self._left = [job.id for job in reversed(self.store.jobs(wanted))]

    def _take_up_left(self) -> None:
        while self._left:
            with self._guard(self._left[0], parking.TAKING_UP) as reach:
                reach()
                self._take_up(self.store.job(self._left[0]))
            del self._left[0]

    def _take_up(self, job: JobRow) -> None:
        attempts, is_open = self.store.attempts(job.id), bool(self.store.open_tokens(job.id))
        if job.state in states.TERMINAL or (job.state == states.HELD and not is_open):
            return
        if not is_open:
            raise LookupError(f"it is {job.state}, and none of its attempts is")
        attempt = attempts[-1]
        if not self._watcher.watches(attempt):
            self._find_again(job, attempt)
        elif job.state == states.LAUNCHING:
            self._mark_running(attempt, clocks.now())
        if self.store.job(job.id).state == states.STOPPING:
            self._watcher.request_stop(attempt, "cancel")

    def _find_again(self, job: JobRow, attempt: AttemptRow) -> None:
        found = reattach.attempt_status(attempt)
        log.info("job %d: found its attempt %d %s", job.id, attempt.number, type(found).__name__)
        if isinstance(found, reattach.NeverStarted) and job.state == states.HELD:
            return
        if isinstance(found, reattach.NeverStarted) and job.state != states.STOPPING:
            # The supervisor may still be on its way; of two, the lock lets one through.
            self._begin(attempt, self._watcher.give_up)
            return
        if isinstance(found, reattach.Alive):
            self._mark_running(attempt, found.began or clocks.now())
        self._watcher.adopt(attempt, found)

    def _advance(self, job: JobRow, event: lifecycle.LifecycleEvent) -> Standing:
        return lifecycle.advance(job.standing, event, now=time.time(), policy=self._policy)

    def _move(self, job: JobRow, after: Standing, kind: str) -> None:
        with self.store.change(job, after, kind, now=time.time()):
            pass
        self._published(job, after)

    def _published(self, job: JobRow, after: Standing) -> None:
        because = f": {after.reason}" if after.reason else ""
        log.info("job %d (%s): %s -> %s%s", job.id, job.name, job.state, after.state, because)
        self.announce()

    def announce(self) -> None:
        """Something was committed: wake whoever waits for events, and the loop."""
        self.changed.set()
        self.changed = asyncio.Event()
        self._wake.set()
