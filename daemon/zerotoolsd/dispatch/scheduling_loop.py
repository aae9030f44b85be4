"""Starts waiting jobs: reads the GPUs, asks the scheduler, and starts the jobs that it chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerotools.jobs import states
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.attempts import make_end_event
from zerotoolsd.attempts.start_attempt import AttemptStarter
from zerotoolsd.dispatch.elastic_growth import ElasticGrowth, GrowthRequests
from zerotoolsd.dispatch.preempt_for_priority import PriorityPreemption
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement
from zerotoolsd.resources.check_gpu_use_of_jobs import SharedGpus
from zerotoolsd.resources.share_gpus_with_daemons import GpuArbiter
from zerotoolsd.resources.snapshot_thread import SnapshotCache

POLL_SECONDS = 2.0
"""Seconds between two readings of the GPUs while a job is waiting for GPUs."""
GPU_PATIENCE_SECONDS = 0.2
"""Longest time, in seconds, for which a round waits for the GPU driver. If the driver answers
later, another round begins.
"""
IDLE_SECONDS = 60.0


class SchedulingLoop:
    """Runs scheduler passes over the pending jobs of `placement`, and starts the chosen jobs.

    `drained` is the reason why no job may start (None: jobs may start). `waits` has the
    reason why each job waits, from the last round.
    """

    def __init__(
        self,
        *,
        placement: QueuePlacement,
        machine: SnapshotCache,
        arbiter: GpuArbiter,
        shared: SharedGpus,
        starter: AttemptStarter,
        growing: ElasticGrowth,
        priority_preemption: PriorityPreemption,
        pressed: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Keep the objects that the loop uses.

        `pressed` returns the reason why no job may start because memory runs out; None if
        jobs may start.
        """
        self._pressed = pressed
        self._placement = placement
        self._machine = machine
        self._arbiter = arbiter
        self._shared = shared
        self._starter = starter
        self._growing = growing
        self._priority_preemption = priority_preemption
        self._leftovers = LeftoverProcesses()
        self.drained = placement.store.drains.get()
        self.waits: Mapping[int, str] = {}

    async def run_pass(self) -> float:
        """Run a scheduler pass and start the chosen jobs. Return the seconds until the next one."""
        wishes = GrowthRequests() if self.drained is not None else self._growing.collect_requests()
        wants_gpus = self._placement.pending.wants_gpus or wishes.wants_gpus
        leased = {lease.gpu_uuid for lease in self._placement.store.leases()}
        self._arbiter.release_others(leased)
        if not wants_gpus and not self._arbiter.lacks_locks(leased):
            return self._schedule(None, {}, wishes)
        snapshot = None
        if wants_gpus:  # jobs without GPUs do not wait for a driver that does not answer
            snapshot = await self._machine.snapshot(patience_seconds=GPU_PATIENCE_SECONDS)
        async with self._arbiter.lock_free_gpus(snapshot, leased) as elsewhere:
            pause = self._schedule(snapshot, elsewhere, wishes)
            self._arbiter.release_others(
                {lease.gpu_uuid for lease in self._placement.store.leases()}
            )
        return pause

    def _schedule(
        self, snapshot: Snapshot | None, elsewhere: Mapping[str, str], wishes: GrowthRequests
    ) -> float:
        pending = self._placement.pending
        idle = IDLE_SECONDS if wishes.wait is None else min(IDLE_SECONDS, wishes.wait)
        if not pending and not wishes.requests:
            self.waits = {}
            return idle
        if self.drained is not None:
            self.waits = dict.fromkeys(pending, self.drained.sentence)
            return IDLE_SECONDS
        if (pressed := self._pressed()) is not None:
            self.waits = dict.fromkeys(pending, pressed)
            return POLL_SECONDS
        kept, wants_gpus = self._leftovers.waits(), pending.wants_gpus or wishes.wants_gpus
        own = self._shared.own_use(snapshot)
        decisions = self._placement.decide(snapshot, kept, elsewhere, own, wishes.requests)
        starts = [start for start in decisions.starts if start.job_id not in wishes.ids]
        self._growing.request_resize(
            [start for start in decisions.starts if start.job_id in wishes.ids]
        )
        for start in starts:
            job = self._placement.store.job(start.job_id)
            # It may have been cancelled while the snapshot was taken.
            if job.state == states.QUEUED and self.drained is None:
                with self._placement.guard(job.id, fault_isolation.STARTING) as reach:
                    reach()
                    if self._leftovers.keeps(job.id, self._placement.store.attempts(job.id)):
                        kept = self._leftovers.waits()
                    else:
                        self._starter.launch(
                            job, start.gpu_uuids, start.gpu_bytes, start.gpu_part, start.size
                        )
        self.waits = decisions.waits.with_passed_over(kept)
        if pending and not starts:
            idle = min(idle, self._priority_preemption.preempt(snapshot, kept, elsewhere, own))
        all_start = len(starts) == len(pending) and not wishes.requests
        polls = kept or decisions.waits_for_host or (wants_gpus and not all_start)
        return POLL_SECONDS if polls else idle


class LeftoverProcesses:
    """The jobs that cannot start because a program of their last attempt still runs.

    The list is kept only in memory. After a restart of the daemon, each job is checked again when
    it is about to start.
    """

    def __init__(self) -> None:
        self._results: dict[int, Mapping[str, Any]] = {}

    def keeps(self, job_id: int, attempts: Sequence[AttemptRow]) -> bool:
        """Return whether the job must wait because a program of its last attempt still runs. If so,
        the reason is in `waits`.
        """
        result = (attempts[-1].result if attempts else None) or {}
        if not make_end_event.may_still_run(result):
            return False
        self._results[job_id] = result
        return True

    def waits(self) -> dict[int, str]:
        """Return the numbers of the jobs that must still wait, each with the reason."""
        self._results = {
            job: left for job, left in self._results.items() if make_end_event.may_still_run(left)
        }
        return {
            job: "waits for leftover processes of its last attempt: "
            f"{make_end_event.survivors_text(left)}; "
            "zerotoolsd has no right to end them"
            for job, left in self._results.items()
        }
