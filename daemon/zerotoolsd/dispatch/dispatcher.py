"""The daemon's loop. Only this loop changes the state of jobs.

The loop decides which work is due. `attempts.start_attempt`, `attempts.finalize_attempt` and
`attempts.reattach_attempts` do the work. Everything runs in the thread of the event loop. Every
decision is written to the store before it takes effect. After a restart, the run directories show
which decisions have taken effect.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs import states
from zerotools.jobs.doctor.kernel_and_clock import clock_is_synchronised
from zerotoolsd.attempts import recover_lost_attempts
from zerotoolsd.attempts.ask_to_stop import AttemptStopper
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher
from zerotoolsd.attempts.backends.fork_server_pool import ForkServerPool
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import SupervisorSpawner
from zerotoolsd.attempts.choose_numa_binding import RankBinder
from zerotoolsd.attempts.delay_starts import StartBackoff
from zerotoolsd.attempts.finalize_attempt import AttemptFinalizer, GpuFaults
from zerotoolsd.attempts.make_attempt_plan import LaunchSettings
from zerotoolsd.attempts.metric_counters import MetricCounters
from zerotoolsd.attempts.reattach_attempts import AttemptRecovery, LeasingAttempts
from zerotoolsd.attempts.start_attempt import AttemptStarter, HostReaders, StartResources
from zerotoolsd.attempts.supervisor_watchdog import LOOK_SECONDS, SupervisorWatchdog
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.config.notify_config import DISK_SHORT, MEMORY_SHORT
from zerotoolsd.dispatch import scheduling_loop
from zerotoolsd.dispatch.checkpoint_pins import CheckpointPins
from zerotoolsd.dispatch.elastic_growth import ElasticGrowth
from zerotoolsd.dispatch.end_jobs_for_memory import MemoryPreemption
from zerotoolsd.dispatch.gpu_memory_guard import GpuMemoryGuard, GpuPromises
from zerotoolsd.dispatch.host_memory_guard import (
    HostMemoryGuard,
    HostMemoryReader,
    HostMemoryUse,
    Live,
)
from zerotoolsd.dispatch.preempt_for_priority import PriorityPreemption
from zerotoolsd.dispatch.remove_ended_jobs import Cleaner
from zerotoolsd.dispatch.scheduling_loop import IDLE_SECONDS, SchedulingLoop
from zerotoolsd.dispatch.upload_last_checkpoints import LastUploads
from zerotoolsd.dispatch.user_priority_ranges import PriorityClasses
from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.monitoring.history_recorder import HistoryClocks, HistoryRecorder
from zerotoolsd.monitoring.notifications.deliver_notices import JobNotifier
from zerotoolsd.queue import clocks, fault_isolation
from zerotoolsd.queue.change_state import StateChanger, policy_of
from zerotoolsd.queue.check_start_conditions import WaitingConditions, why_it_waits
from zerotoolsd.queue.database_disk_reserve import why_low_space
from zerotoolsd.queue.fair_share import UsageReport
from zerotoolsd.queue.fault_isolation import FAULT_SECONDS, GuardedRounds, JobGuard, Touch
from zerotoolsd.queue.lifecycle import Hold, Resume, Retry
from zerotoolsd.queue.request_from_job_file import memory_of_machine
from zerotoolsd.queue.rows import AttemptRow, JobRow, Lease
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement, QueueUsers
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import RELIEVE, RELIEVE_GPU, YieldAsk
from zerotoolsd.resources.check_gpu_use_of_jobs import SharedGpus
from zerotoolsd.resources.gpu_leak_watch import LeakWatch
from zerotoolsd.resources.share_gpus_with_daemons import GpuArbiter
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

SLEEP_FACTOR = 4.0
"""After a round, the loop pauses for this many times the processor time of the round."""
LONGEST_STEP_SECONDS = 120.0
"""Seconds after which a round counts as hanging. All calls of NVML and all file accesses have
shorter deadlines.
"""
log = logging.getLogger(__name__)


class Dispatcher:
    """Runs the jobs in the queue until they have ended."""

    def __init__(
        self,
        *,
        state_dir: Path,
        store: Store,
        machine: SnapshotCache,
        ask: Ask,
        launch: LaunchSettings,
        touch: Touch = lambda job_id, doing: None,
        users: ServedUsers = OWN_ONLY,
        host: HostReaders | None = None,
    ) -> None:
        config, backend = launch.config, launch.backend
        host = host or HostReaders()
        self.users = users
        self.state_dir = state_dir
        self.store = store
        self.config = config
        self.machine = machine
        self._step_began: float | None = None
        self._rounds = GuardedRounds()
        self.changed = asyncio.Event()
        self._wake = asyncio.Event()
        self.tally = MetricCounters()
        store.on_commit = self.tally.commits.observe
        self.transitions = StateChanger(store, policy_of(config.retry), self.announce)
        machine.on_late_answer = self._wake.set
        self._pending = StartBackoff(self._wake.set)
        self._retries = clocks.RetryWaits(config.retry.most_seconds)
        self._job_guard = JobGuard(self.jobs_dir, self._hold, touch, self._pending.put_off)
        self._guard = self._job_guard.guard
        self.shares = UsageReport(store, config.shares)
        memory = HostMemoryReader(in_units=backend.program is not None)
        self._host_now = HostMemoryUse(self._running, memory.available)
        self.placement = QueuePlacement(
            store,
            self._job_guard,
            config.limits,
            grace_seconds=config.stop.grace_seconds,
            memory=memory_of_machine(config),
            users=QueueUsers(ranks=self.shares.ranks, quotas=users.quotas, name=users.owner_name),
            host_now=self._host_now.read,
        )
        calendar = clocks.SteadyCalendar(clock_is_synchronised)
        self.conditions = WaitingConditions(self.transitions, self._job_guard, calendar.now)
        self.residue = LeakWatch(
            store=store,
            machine=machine,
            guard=self._guard,
            live=self._running,
            limit=config.limits.foreign_on,
            announce=self.announce,
            ask=ask,
        )
        self._ends = AttemptFinalizer(
            transitions=self.transitions,
            guard=self._guard,
            wake=self._wake.set,
            faults=GpuFaults(
                name=machine.gpu_name,
                xids=machine.xids_of,
                fence_seconds=config.retry.fence_seconds,
            ),
            tally=self.tally,
            gone=self.residue.add_ended,
            freed=self.residue.settle,
        )
        leasing = LeasingAttempts(store)
        self.arbiter = GpuArbiter(config.gpus.locks, leasing.lives_on, leasing.begins_on)
        self.warm = ForkServerPool(config.warm_start, backend)
        self.placer = RankBinder(lambda: machine.gpus, host.topology)
        self.spawner = SupervisorSpawner(backend, config.stop.grace_seconds, spawn=launch.spawn)
        self._watcher = AttemptWatcher(
            on_over=self._ends.record_end,
            guard=self._guard,
            pending=self._pending,
            spawner=self.spawner,
            kill_seconds=config.stop.kill_seconds,
        )
        self._overseer = SupervisorWatchdog(
            self._watcher.live,
            self._watcher.abandon,
            self._guard,
            grace_seconds=config.stop.grace_seconds,
            kill_seconds=config.stop.kill_seconds,
        )
        self._starter = AttemptStarter(
            transitions=self.transitions,
            watcher=self._watcher,
            pending=self._pending,
            jobs_dir=self.jobs_dir,
            settings=launch,
            resources=StartResources(
                gpu_locks=self.arbiter.locks_for_supervisor,
                unaccounted=machine.unaccounted,
                placer=self.placer,
                mounts=host.mounts,
            ),
            users=users,
            warm=self.warm,
        )
        self._starter.on_first_start = self.tally.queue_waits.observe
        self._watcher.on_running = self._starter.found_running
        self._recovery = AttemptRecovery(
            store=store,
            guard=self._guard,
            watcher=self._watcher,
            starter=self._starter,
            pending=self._pending,
        )
        self._stopping = AttemptStopper(
            transitions=self.transitions,
            watcher=self._watcher,
            recovery=self._recovery,
            pending=self._pending,
            ends=self._ends,
            guard=self._guard,
        )
        self._shared = SharedGpus(
            store=store,
            machine=machine,
            config=config.gpus,
            live=self._watcher.live,
            over=self._report_overuse,
            idle=self._report_idle,
        )
        self.pressure, self.gpu_pressure = memory_guards(
            config=config,
            machine=machine,
            live=self._running,
            placement=self.placement,
            host=memory,
            host_now=self._host_now,
            asking=partial(
                MemoryPreemption,
                store,
                self._guard,
                self._stopping.give_way,
                self._watcher.end_at_once,
            ),
            wake=self._wake.set,
        )
        self.placement.closed = lambda: self.gpu_pressure.closed
        self.growing = ElasticGrowth(
            store, config.elastic, guard=self._guard, give_way=self._stopping.give_way
        )
        self._priority_preemption = PriorityPreemption(
            placement=self.placement,
            shared=self._shared,
            config=config.preemption,
            give_way=self._stopping.give_way,
        )
        self.placing = SchedulingLoop(
            placement=self.placement,
            machine=machine,
            arbiter=self.arbiter,
            shared=self._shared,
            starter=self._starter,
            growing=self.growing,
            priority_preemption=self._priority_preemption,
            pressed=lambda: self.pressure.why_none_starts,
        )
        machine.lets_go = lambda: self.placing.drained is not None and not self._running()
        self.priority_classes = PriorityClasses(config.priority)
        self.notifier = JobNotifier(store, config.notify, self._guard, users, self._shortages)
        self.last_uploads = LastUploads(store, self.announce, users)
        self.cleaner = Cleaner(state_dir, store, self.announce, ask, users)
        self.needed = CheckpointPins(state_dir, store, users)
        self.history = HistoryRecorder(
            state_dir,
            store,
            machine,
            config.history,
            live=self._running,
            use=self._shared.use_of_jobs,
            clocks=HistoryClocks(removal=calendar.now, is_synchronised=clock_is_synchronised),
        )
        self._needs_settled = time.monotonic()

    @property
    def waits(self) -> Mapping[int, str]:
        """Return why each queued job waits, according to the last round: job number -> sentence."""
        return self.placing.waits

    def _running(self) -> list[AttemptRow]:
        return [attempt for attempt, _ in self._watcher.live()]

    @property
    def jobs_dir(self) -> Path:
        """Return the directory that contains one directory for each job, named by job number."""
        return self.state_dir / "jobs"

    async def run(self, stop: asyncio.Event) -> None:
        """Reattach to the running jobs, then start and end jobs until `stop` is set. Running
        jobs continue after that.
        """
        self._recovery.note_all()
        self.residue.add_recently_ended()
        self.needed.begin()
        stopping = asyncio.create_task(stop.wait())
        cleaning = self.cleaner.run_forever(self.config.retention)
        warm = self.warm.run_forever(self._starter.loads)
        loops = (
            cleaning,
            self._watch_attempts(),
            self._shared.run_forever(),
            self.notifier.run_forever(),
            warm,
        )
        more = (
            self.history.run_forever(),
            self.pressure.run_forever(),
            self.gpu_pressure.run_forever(),
        )
        every = (*loops, *more, self.residue.run_forever(), self.last_uploads.run_forever())
        beside = [asyncio.create_task(each) for each in every]
        try:
            while not stop.is_set():
                self._wake.clear()
                self._step_began, used = time.monotonic(), time.thread_time()
                pause = await self._rounds.run_round(self._step)
                self._step_began = None
                # A long queue may use only a part of the processor, even if it changes often.
                await _until(stopping, SLEEP_FACTOR * (time.thread_time() - used))
                waking = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    (stopping, waking), timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                waking.cancel()
        finally:
            stopping.cancel()
            for task in beside:
                task.cancel()
            self._watcher.close()
            self.arbiter.close()
            self.warm.close()
            self.history.close()

    async def _watch_attempts(self) -> None:
        while True:
            due = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.tally.record_lag(max(0.0, time.monotonic() - due))
            try:
                self._overseer.check()
                self._priority_preemption.note_first_steps()
            except sqlite3.OperationalError as error:  # an end is tried again by `_step`
                log.error("the queue cannot be written now: %s", error)
            except Exception:  # out of memory, or a defect: attempts must still be watched
                log.exception("attempts cannot be checked now")

    def is_healthy(self, now: float) -> bool:
        """Return whether the loop still completes its rounds. `now` is in monotonic seconds."""
        return self._step_began is None or now - self._step_began < LONGEST_STEP_SECONDS

    async def _step(self) -> float:
        """Run one round of the loop. Return the seconds until the next round is due."""
        all_held = self._job_guard.settle()
        self.store.disk_reserve.reserve()
        if time.monotonic() - self._needs_settled >= IDLE_SECONDS:
            self._needs_settled = time.monotonic()
            self.needed.settle()
        for job_id in self._pending.pop_due():
            self._recovery.note(job_id)
        for job in self.store.jobs([states.LAUNCHING]):
            if job.id not in self._pending:  # that it runs could not be committed
                self._recovery.note(job.id)
        if self._recovery.has_noted and not self.machine.gpus and self.store.leases():
            await self.machine.snapshot()  # one may begin anew, next to GPUs that were not read yet
        self._recovery.reattach_all()
        if self._ends.needs_gpu_reading:
            await self.machine.snapshot(
                most_age_seconds=0, patience_seconds=scheduling_loop.GPU_PATIENCE_SECONDS
            )
            self._ends.record_gpu_reading()
        self._ends.retry()
        pauses = [
            IDLE_SECONDS,
            *self._retry_due(),
            *self._stopping.ask_expired(clocks.read_clocks()),
        ]
        if (until := self.conditions.settle()) is not None:
            pauses.append(max(until, 0.0))
        await asyncio.sleep(0)
        while not self.placement.catch_up():
            await asyncio.sleep(0)
        pauses.append(await self.placing.run_pass())
        all_asked = self._watcher.request_again()
        if self._ends.release_freed() or not (self._ends.all_committed and all_held and all_asked):
            pauses.append(FAULT_SECONDS)
        return min([*pauses, *self._pending.pauses])

    def _retry_due(self) -> list[float]:
        """Queue the crashed jobs that have waited long enough for their restart. Return the seconds
        that each other crashed job must still wait.
        """
        waits: list[float] = []
        for job in self.store.jobs([states.WAITING_RETRY]):
            with self._guard(job.id, fault_isolation.RETRYING) as reach:
                reach()
                wait = self._retries.seconds_left(job.id, job.standing.eligible_at)
                if wait > 0:
                    waits.append(wait)
                else:
                    self._retries.forget(job.id)
                    self.transitions.apply(job, Retry())
        return waits

    def _shortages(self) -> dict[str, str]:
        """Return the machine's shortages (memory, disk): kind of the notice -> sentence."""
        least = bytes_of(self.config.notify.disk_free)
        found = {
            MEMORY_SHORT: self.pressure.why_none_starts,
            DISK_SHORT: why_low_space(self.state_dir, least),
        }
        return {notice: why for notice, why in found.items() if why is not None}

    def _report_overuse(self, lease: Lease, what: str) -> None:
        self.announce()
        job = self.store.job(lease.job_id)
        if self.config.gpus.end_over_declared and job.state == states.RUNNING:
            self.cancel(job, f"zerotoolsd ([gpus] end_over_declared): {what}")

    def _report_idle(self, lease: Lease, what: str) -> None:
        self.announce()
        job = self.store.job(lease.job_id)
        if self.config.gpus.stop_idle and job.state == states.RUNNING:
            self.cancel(job, f"zerotoolsd ([gpus] stop_idle): {what}")

    def why_it_waits(self, job: JobRow) -> str | None:
        """Return a sentence that says why the job waits, or what is wrong with it. Return None if
        the job does not wait and nothing is wrong.
        """
        if job.state == states.QUEUED:
            waits = self.waits.get(job.id) or self._pending.why(job.id)
            return "; ".join(filter(None, (job.standing.reason, waits))) or None
        if job.state == states.WAITING:
            after = self.store.dependencies.of(job.id)
            return why_it_waits(job.begin, after, time.time())
        if job.state == states.RUNNING and self._stopping.is_expired(job):
            silent = self._overseer.silent.get(job.id)
            asked = "its time limit is reached: it saves and stops"
            return f"{asked}; {silent}" if silent else asked
        why = self._watcher.held.get(job.id) or self._pending.why(job.id)
        of_gpus = self._shared.over.why(job.id), self._shared.idle.why(job.id)
        said = (self._overseer.silent.get(job.id), *of_gpus)
        if any(said):
            why = "; ".join(filter(None, (job.standing.reason, why, *said)))
        return why if job.state in states.ACTIVE else None

    def add_queued(self, job: JobRow) -> None:
        """Wake the loop, because `job` was queued or edited."""
        self.placement.cache_job(job)
        self.announce()

    def cancel(self, job: JobRow, who: str) -> None:
        """Cancel the job for the user `who`. Raises NotAllowed if the job has ended."""
        self._stopping.cancel(job, who)

    def yield_job(self, job: JobRow, purpose: str, why: str, *, for_job: int | None = None) -> None:
        """Ask the attempt of the job to save and end. The job continues later
        (`AttemptStopper.give_way`).

        `for_job` is the number of the job that needs the resources; None if no job needs them.
        """
        self._stopping.give_way(job, YieldAsk(purpose=purpose, for_job=for_job), why)

    def resume(self, job: JobRow) -> None:
        """Resume a held job: start it again from its last checkpoint, or reattach to its
        attempt if that is still running.

        Raises NotAllowed if the job is not held.
        """
        if ran := recover_lost_attempts.add_missing_attempts(
            self.jobs_dir, self.store, job.id, time.time()
        ):
            job = self.store.job(job.id)
        event = Resume(live=bool(self.store.open_tokens(job.id)), waits=self.conditions.waits(job))
        if job.state == states.HELD or not ran:
            self.transitions.apply(job, event)
        if event.live:
            self._recovery.reattach_job(job.id)

    def _hold(self, job_id: int, why: str) -> None:
        """Hold the job for the reason `why`; end it instead if it is being cancelled."""
        job = self.store.job(job_id)
        if job.state in states.TERMINAL:
            return
        if job.state == states.STOPPING and self._ends.end_by_force(job, why):
            return
        event = Hold(why=why)
        if self.transitions.state_after(job, event) != job.standing:
            self.transitions.apply(job, event)

    def announce(self) -> None:
        """Wake the loop and all requests that wait for events. Call this after a commit."""
        self.changed.set()
        self.changed = asyncio.Event()
        self._wake.set()


async def _until(stopping: asyncio.Task[bool], seconds: float) -> None:
    await asyncio.wait((stopping,), timeout=seconds)


# Makes the two loops that act before the memory of the host or of a shared GPU is used up.
#
# `choose_low_memory_action` decides on the actions, and `end_jobs_for_memory` carries them out.


def memory_guards(
    *,
    config: Config,
    machine: SnapshotCache,
    live: Live,
    placement: QueuePlacement,
    host: HostMemoryReader,
    host_now: HostMemoryUse,
    asking: Callable[[str], MemoryPreemption],
    wake: Callable[[], None],
) -> tuple[HostMemoryGuard, GpuMemoryGuard]:
    """Create the object that watches the host memory and the object that watches the memory of
    GPUs.

    `live` returns the running attempts. `asking` takes one of the purposes in PURPOSES, and returns
    the object that asks jobs to save and end for this purpose.
    """
    return HostMemoryGuard(
        config.pressure,
        asking(RELIEVE),
        live,
        host_now.read,
        expected=placement.expected_of_running,
        wake=wake,
        read=host.read,
    ), GpuMemoryGuard(
        config.pressure,
        machine,
        asking(RELIEVE_GPU),
        live,
        GpuPromises(
            bytes_of(config.gpus.context_memory),
            placement.expected_of_gpu,
            config.limits.foreign_on,
        ),
        wake=wake,
    )
