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
from zerotools.jobs.spec import JobSpec
from zerotoolsd import crashpoints, launch, lifecycle, reattach, timelimit, told
from zerotoolsd.cleaner import Cleaner
from zerotoolsd.config import Config
from zerotoolsd.lifecycle import Admit, Cancel, Ended, Retry, Standing, Started
from zerotoolsd.machine import Machine
from zerotoolsd.scheduler import Request, Start, tick
from zerotoolsd.store.rows import LAUNCHING, AttemptRow, JobRow
from zerotoolsd.store.store import Store
from zerotoolsd.supervisor.plan import ATTEMPT
from zerotoolsd.supervisor.procfs import boot_id, read_process
from zerotoolsd.watcher import OnOver, Watcher

POLL_SECONDS = 2.0
"""How often the GPUs are looked at while a job waits for them."""
IDLE_SECONDS = 60.0
FAULT_SECONDS = 1.0
"""How often what could not be done is tried again."""

log = logging.getLogger(__name__)


def request_of(job_id: int, spec: JobSpec) -> Request:
    """What the scheduler has to find for a job."""
    gpus = None if spec.device == "cpu" else (spec.gpus if spec.gpus is not None else 1)
    return Request(job_id=job_id, world_size=spec.world_size, gpus=gpus)


class Engine:
    """Jobs from the queue to their end."""

    def __init__(
        self,
        *,
        state_dir: Path,
        store: Store,
        config: Config,
        machine: Machine,
        command: launch.RankCommand = launch.trainer_command,
        umask: int = 0o022,
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
        self._watcher = Watcher(self._over)
        self._wake = asyncio.Event()
        self._requests: dict[int, Request] = {}
        self._expired: set[str] = set()
        self._unsettled: dict[str, tuple[AttemptRow, Mapping[str, Any]]] = {}
        self.cleaner = Cleaner(state_dir, store, self.announce)

    @property
    def jobs_dir(self) -> Path:
        """Where the run directories are, by job id."""
        return self.state_dir / "jobs"

    async def run(self, stop: asyncio.Event) -> None:
        """Take up what runs, then schedule until `stop` is set. Jobs go on afterwards."""
        self.recover()
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
            return FAULT_SECONDS

    async def _step(self) -> float:
        """One round; returns the seconds until the next is due by itself."""
        for attempt, record in list(self._unsettled.values()):
            self._over(attempt, record)
        now = time.time()
        pauses = [IDLE_SECONDS, *self._retry_due(now), *self._stop_expired(now)]
        queued = list(reversed(self.store.jobs([states.QUEUED])))
        if queued:
            pauses.append(await self._schedule(queued))
        else:
            self.waits = {}
        if self._release_freed() or self._unsettled:
            pauses.append(FAULT_SECONDS)
        return min(pauses)

    def _retry_due(self, now: float) -> list[float]:
        """Queue the jobs whose wait is over; the seconds that the others still wait."""
        waits = []
        for job in self.store.jobs([states.WAITING_RETRY]):
            wait = (job.standing.eligible_at or now) - now
            # A wait longer than the longest means that the clock was set back.
            if 0 < wait <= self._policy.most_seconds:
                waits.append(wait)
            else:
                self._move(job, self._advance(job, Retry()), states.RETRY)
        return waits

    def _stop_expired(self, now: float) -> list[float]:
        """Ask jobs whose time limit is over to save and stop; the seconds that others have left."""
        left = []
        for job in self.store.jobs([states.RUNNING]):
            attempts = self.store.attempts(job.id)
            seconds = timelimit.seconds_left(_readable_spec(job), attempts, now)
            if seconds is not None and seconds > 0:
                left.append(seconds)
            elif seconds is not None and attempts[-1].token not in self._expired:
                self._expired.add(attempts[-1].token)
                self._watcher.request_stop(attempts[-1], timelimit.REASON)
        return left

    async def _schedule(self, queued: list[JobRow]) -> float:
        jobs = {job.id: job for job in queued}
        requests = self._requests_of(queued)
        wants_gpus = any(request.gpus is not None for request in requests)
        snapshot = await self.machine.snapshot() if wants_gpus else None
        decisions = tick(
            requests,
            now=time.time(),
            snapshot=snapshot,
            leases=self.store.leases(),
            cpu_ranks_used=self._cpu_ranks_used(),
            limits=self.config.limits,
        )
        self.waits = decisions.waits
        for start in decisions.starts:
            # It may have been cancelled while the snapshot was taken.
            if self.store.job(start.job_id).state == states.QUEUED:
                self._launch(jobs[start.job_id], start)
        return POLL_SECONDS if wants_gpus and decisions.waits else IDLE_SECONDS

    def _requests_of(self, queued: list[JobRow]) -> list[Request]:
        """What each job needs, worked out once; a job that cannot be read any more is given up."""
        known, self._requests = self._requests, {}
        for job in queued:
            try:
                self._requests[job.id] = known.get(job.id) or request_of(job.id, job.spec)
            except ZerotoolsError as error:
                self._give_up(job, str(error))
        return list(self._requests.values())

    def _cpu_ranks_used(self) -> int:
        specs = map(_readable_spec, self.store.jobs(states.ACTIVE))
        return sum(spec.world_size for spec in specs if spec and spec.device == "cpu")

    def _give_up(self, job: JobRow, why: str) -> None:
        ended = Ended(outcome=lifecycle.BAD_JOB, cause=why, saved_step=0, max_restarts=0)
        self._move(job, self._advance(job, ended), states.GAVE_UP)

    def _launch(self, job: JobRow, start: Start) -> None:
        attempts = self.store.attempts(job.id)
        number = len(attempts) + 1
        found = told.latest_checkpoint(job, attempts)
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
            known = told.checkpoints_before(before)
            launch.prepare(job, attempt, self.config, self._command, self._umask, known)
            self._watcher.start(attempt)
        except OSError as error:
            cause = f"could not be started: {error.strerror}: {error.filename}"
            failed(attempt, {"outcome": lifecycle.CRASHED, "cause": cause})
            return
        except ZerotoolsError as error:
            failed(attempt, {"outcome": lifecycle.BAD_JOB, "cause": str(error)})
            return
        crashpoints.reach(crashpoints.SUPERVISOR_SPAWNED)
        self._mark_running(attempt)

    def _mark_running(self, attempt: AttemptRow) -> None:
        job = self.store.job(attempt.job_id)
        if attempt.state != LAUNCHING:
            return
        after = self._advance(job, Started())
        now = time.time()
        with self.store.change(
            job, after, states.STARTED, now=now, attempt=attempt.number
        ) as change:
            change.attempt_started(attempt.number, now)
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
        after = self._advance(job, Cancel(who=who))
        attempts = self.store.attempts(job.id)
        if job.state != states.STOPPING:
            self._move(job, after, states.CANCEL)
            crashpoints.reach(crashpoints.CANCEL_COMMITTED)
        if after.state == states.STOPPING:
            self._watcher.request_stop(attempts[-1], "cancel")

    def _over(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Commit an attempt's end; what cannot be committed now is tried again."""
        crashpoints.reach(crashpoints.END_SEEN)
        if attempt.token not in self._unsettled:
            self._unsettled[attempt.token] = (attempt, record)
            self._wake.set()
        try:
            self._commit_end(attempt, record)
        except sqlite3.OperationalError as error:
            log.error("the end of job %d cannot be recorded yet: %s", attempt.job_id, error)
        else:
            del self._unsettled[attempt.token]
            self._expired.discard(attempt.token)

    def _commit_end(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        job = self.store.job(attempt.job_id)
        outcome, spec = record.get("outcome"), _readable_spec(job)
        end = Ended(
            outcome=outcome if outcome in lifecycle.OUTCOMES else lifecycle.CRASHED,
            cause=str(record.get("cause")),
            saved_step=_saved_step(record),
            max_restarts=spec.max_restarts if spec else 0,
            time_limit=timelimit.that_ended(spec, record, asked=attempt.token in self._expired),
            note=_what_failed_after(record),
        )
        after, kind = self._advance(job, end), lifecycle.name_of(job.standing, end)
        stuck = [f"pid {process['pid']}" for process in record.get("unkillable", ())]
        now = time.time()
        with self.store.change(job, after, kind, now=now, attempt=attempt.number) as change:
            change.attempt_ended(attempt.number, now, record, ", ".join(stuck) or None)
        self._published(job, after)

    def _release_freed(self) -> bool:
        """Free the GPUs whose last process is gone at last; whether some are still held."""
        held = [lease for lease in self.store.leases() if lease.held_by is not None]
        for lease in held:
            attempt = self.store.attempts(lease.job_id)[lease.attempt - 1]
            stuck = (attempt.result or {}).get("unkillable", ())
            if not any(_still_there(process) for process in stuck):
                self.store.release(lease, time.time())
        return bool(held)

    def recover(self) -> None:
        """Take up every attempt that the last daemon left."""
        for job in reversed(self.store.jobs(states.ACTIVE)):
            attempt = self.store.attempts(job.id)[-1]
            found = _look(attempt)
            log.info(
                "job %d: found its attempt %d %s", job.id, attempt.number, type(found).__name__
            )
            if isinstance(found, reattach.NeverStarted) and job.state != states.STOPPING:
                # The supervisor may still be on its way; of two, the lock lets one through.
                self._begin(attempt, self._watcher.give_up)
                continue
            if isinstance(found, reattach.Alive):
                self._mark_running(attempt)
            self._watcher.adopt(attempt, found)
            if job.state == states.STOPPING:
                self._watcher.request_stop(attempt, "cancel")

    def _advance(self, job: JobRow, event: lifecycle.Event) -> Standing:
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


def _look(attempt: AttemptRow) -> reattach.Finding:
    run_dir = Path(attempt.run_dir)
    found = reattach.look(run_dir, attempt.token)
    if not isinstance(found, reattach.NeverStarted) or attempt.state == LAUNCHING:
        return found
    try:
        prepared = (run_dir / ATTEMPT).exists()
    except OSError as error:
        return reattach.Unreadable(f"{error.filename}: {error.strerror}")
    # It was written before the attempt was started: if it is gone, someone has removed it since.
    return found if prepared else reattach.Gone("its run directory was removed")


def _readable_spec(job: JobRow) -> JobSpec | None:
    """None: another version queued the job, and this one cannot read it."""
    try:
        return job.spec
    except ZerotoolsError as error:
        log.warning("%s", error)
        return None


def _what_failed_after(record: Mapping[str, Any]) -> str | None:
    closing = record.get("closing")
    why = closing.get("why") if isinstance(closing, Mapping) else None
    return None if why is None else f"all its steps are done and saved; the export failed: {why}"


def _saved_step(record: Mapping[str, Any]) -> int:
    checkpoint = record.get("checkpoint")
    return int(checkpoint["step"]) if isinstance(checkpoint, Mapping) else 0


def _still_there(process: Mapping[str, Any]) -> bool:
    now = read_process(int(process["pid"]))
    if process.get("boot_id", boot_id()) != boot_id():
        return False
    return now is not None and now.start_ticks == process["start_ticks"]
