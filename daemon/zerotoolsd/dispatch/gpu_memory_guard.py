"""Watches the memory of GPUs that jobs share, and acts before it is used up."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config.config_tables import NOTHING, SAVE, STOP, PressureConfig
from zerotoolsd.dispatch.choose_low_memory_action import (
    HIGHEST,
    Escalation,
    EscalationStep,
    GpuJob,
    GpuMemoryState,
    first_level,
    next_on,
    reserve_of,
    wanted_on,
    why_asked,
    why_scarce,
)
from zerotoolsd.dispatch.end_jobs_for_memory import MemoryPreemption
from zerotoolsd.dispatch.forecast_memory_exhaustion import (
    GpuCurve,
    GpuSample,
)
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import is_usable
from zerotoolsd.resources.check_gpu_use_of_jobs import MeasuredUse, measure_gpu_use
from zerotoolsd.resources.snapshot_thread import SnapshotCache

LOOK_SECONDS, SPARED = 1.0, 50.0
"""Two checks are at least this many seconds apart, and this many times the duration of a check.
"""
AGE_SECONDS = 0.25
"""Samples that are older than this many seconds are not used, because a rate depends on their
time.
"""
PATIENCE_SECONDS = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuPromises:
    """The memory on GPUs that is promised to jobs.

    Attributes:
        context: the bytes promised to a job in addition to the memory that it declared.
        expected: job number -> the bytes promised to the job if it has a whole GPU (0: unknown).
        foreign: GPU -> the bytes that programs of others may hold on it without being counted.
    """

    context: int
    expected: Callable[[int], int] = lambda job_id: 0
    foreign: Callable[[Gpu], int] = lambda gpu: 0

    def of(self, lease: Lease, held: int) -> int:
        """Return the memory in bytes that is promised to the job with the lease `lease`.

        A job with a whole GPU may always keep the memory that it uses now, which is `held`.
        """
        if lease.bytes is not None:
            return lease.bytes + self.context
        return max(held, self.expected(lease.job_id))


@dataclass
class _Watched:
    curve: GpuCurve = field(default_factory=GpuCurve)
    escalation: Escalation = field(default_factory=Escalation)


class GpuMemoryGuard:
    """The loop that watches the memory of GPUs that jobs share with others.

    `live` returns the running attempts. If the samples are too old, no job is asked to save and
    end.
    """

    def __init__(
        self,
        config: PressureConfig,
        machine: SnapshotCache,
        asking: MemoryPreemption,
        live: Callable[[], Sequence[AttemptRow]],
        promised: GpuPromises,
        wake: Callable[[], None],
        measured: Callable[[Sequence[Gpu], Sequence[AttemptRow]], MeasuredUse] = measure_gpu_use,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._machine, self._asking = config, machine, asking
        self._live, self._promised = live, promised
        self._wake, self._measured, self._clock = wake, measured, clock
        self._watched: dict[str, _Watched] = {}
        self._seen: Snapshot | None = None

    @property
    def closed(self) -> Mapping[str, str]:
        """Return the GPUs on which no more jobs are started: UUID -> reason. The reason is the end
        of a sentence that begins "GPU 0 ".
        """
        return {
            uuid: f"gets no more jobs while its memory runs out: it has {each.escalation.why}"
            for uuid, each in self._watched.items()
            if min(each.escalation.level, HIGHEST[self._config.most]) >= EscalationStep.WAIT
        }

    async def run_forever(self) -> None:
        """Check the memory again and again while a running job may need it, until cancelled."""
        if self._config.most == NOTHING:
            return
        pause = LOOK_SECONDS
        while True:
            await asyncio.sleep(max(pause, LOOK_SECONDS, self._config.seconds))
            try:
                if not self._concerned():
                    self._watched = {}
                    continue
                snapshot = await self._machine.snapshot(
                    most_age_seconds=AGE_SECONDS, patience_seconds=PATIENCE_SECONDS
                )
                begun = time.monotonic()
                self.check(snapshot)
                pause = SPARED * (time.monotonic() - begun)
            except sqlite3.OperationalError as error:
                log.error("the queue cannot be written now: %s", error)
            except Exception:  # out of memory, or a defect: the next check is independent
                log.exception("the memory of the GPUs cannot be checked now")

    def _concerned(self) -> list[Lease]:
        """Return the leases of GPUs to watch: shared GPUs, or all if jobs may be asked to save."""
        all_of_them = self._config.most in (SAVE, STOP)
        return [
            lease
            for lease in self._asking.store.leases()
            if lease.held_by is None and (all_of_them or lease.bytes is not None)
        ]

    def check(self, snapshot: Snapshot) -> None:
        """Check the GPUs in `snapshot` once, and act if their memory is running out."""
        if snapshot is self._seen or snapshot.gpus_error is not None or snapshot.gpus_silent:
            return
        self._seen = snapshot
        leases, live, before = self._concerned(), self._live(), set(self.closed)
        here = {gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid is not None and is_usable(gpu)}
        leased = {lease.gpu_uuid for lease in leases} & here.keys()
        self._watched = {uuid: each for uuid, each in self._watched.items() if uuid in leased}
        use = self._measured([here[uuid] for uuid in sorted(leased)], live)
        self._asking.forget_ended(live)
        for uuid in sorted(leased):
            there = [lease for lease in leases if lease.gpu_uuid == uuid]
            self._check_gpu(here[uuid], there, live, use)
        if before != self.closed.keys():
            self._log_changes(before, self.closed)
            self._wake()

    def _log_changes(self, before: Set[str], now: Mapping[str, str]) -> None:
        for uuid in {*before, *now}:
            why = now.get(uuid, "has enough memory again, or no job")
            if (uuid in before) != (uuid in now):
                log.warning("%s %s", self._machine.gpu_name(uuid), why)

    def _check_gpu(
        self, gpu: Gpu, leases: Sequence[Lease], live: Sequence[AttemptRow], use: MeasuredUse
    ) -> None:
        sample = self._sample(gpu, leases, use)
        if sample is None:
            return
        watched = self._watched.setdefault(gpu.uuid or "", _Watched())
        watched.curve.add(sample)
        outlook = watched.curve.outlook(reserve_of(sample.total))
        now = GpuMemoryState(
            outlook=outlook, owners=len(leases), strangers=self._strangers(gpu, sample)
        )
        if len(leases) < 2 and not now.strangers:  # no other program could be harmed
            watched.escalation = Escalation()
            return
        if first_level(outlook) is EscalationStep.CALM:
            watched.escalation = watched.escalation.updated(EscalationStep.CALM, "", sample.clock)
            return
        here = {(lease.job_id, lease.attempt) for lease in leases}
        there = [each for each in live if (each.job_id, each.number) in here]
        now = GpuMemoryState(
            outlook=outlook,
            jobs=self._jobs(watched.curve, there),
            owners=len(leases),
            strangers=now.strangers,
        )
        watched.escalation = watched.escalation.updated(
            wanted_on(now), why_scarce(outlook), sample.clock
        )
        act = next_on(now, HIGHEST[self._config.most], sample.clock)
        if act is not None:
            job = next(each for each in now.jobs if each.holder.job_id == act.job_id)
            name = self._machine.gpu_name(gpu.uuid or "")
            self._asking.execute(act, there, why_asked(job, name, outlook), sample.clock)

    def _sample(self, gpu: Gpu, leases: Sequence[Lease], use: MeasuredUse) -> GpuSample | None:
        if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
            return None
        total = gpu.memory_total_bytes - (gpu.memory_reserved_bytes or 0)
        free = max(0, total - gpu.memory_used_bytes)
        if (uuid := gpu.uuid) not in use.own or uuid is None:
            return GpuSample(self._clock(), total, free, known=False)
        of_jobs = {
            lease.job_id: use.of_attempts.get((lease.job_id, lease.attempt), {}).get(uuid, 0)
            for lease in leases
        }
        promised = {
            lease.job_id: self._promised.of(lease, of_jobs[lease.job_id]) for lease in leases
        }
        return GpuSample(self._clock(), total, free, of_jobs, promised)

    def _strangers(self, gpu: Gpu, sample: GpuSample) -> bool:
        """Return whether programs of others use the GPU. Return False if the driver does not
        report which process holds how much.
        """
        if not sample.known:
            return False
        listed = sum(p.memory_used_bytes or 0 for p in gpu.processes if not p.graphics)
        return listed - sum(sample.held.values()) > self._promised.foreign(gpu)

    def _jobs(self, curve: GpuCurve, there: Sequence[AttemptRow]) -> list[GpuJob]:
        newest = curve.newest
        if not newest.known:
            return []
        return [
            GpuJob(
                holder=holder,
                over=newest.excess_of(holder.job_id),
                to_come=newest.to_come_of(holder.job_id),
                grows=curve.grows(holder.job_id),
            )
            for holder in self._asking.holders(there, newest.held)
        ]
