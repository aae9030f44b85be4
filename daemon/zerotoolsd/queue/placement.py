"""What the queue asks the scheduler, job by job, so that one that confuses it is held alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from zerotools.jobs import states
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY, Snapshot
from zerotoolsd.config import LimitsConfig
from zerotoolsd.queue import clocks, parking, time_limit
from zerotoolsd.queue.parking import JobGuard
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.scheduler import CapabilityNeed, Request, TickDecisions, tick
from zerotoolsd.queue.store import Store

ATTENTION_CAPABILITIES = {
    "flash_attention_2": (8, 0),
    "flash_attention_3": (9, 0),
    "flex_attention": (7, 0),
}
"""The first GPUs that each runs on: by the README of flash-attention 2 and 3, and of Triton, into
which torch compiles flex_attention."""


def request_of(job_id: int, spec: JobSpec, grace_seconds: float = 0.0) -> Request:
    """What the scheduler has to find for a job, which may save for `grace_seconds` at its limit."""
    gpus = None if spec.device == "cpu" else (spec.gpus if spec.gpus is not None else 1)
    need = None if spec.device == "cpu" else _capability_need(spec)
    limit = None if spec.time_limit is None else seconds_of(spec.time_limit) + grace_seconds
    return Request(
        job_id=job_id, world_size=spec.world_size, gpus=gpus, capability=need, lasts=limit
    )


def _capability_need(spec: JobSpec) -> CapabilityNeed | None:
    """What asks most of a GPU."""
    if spec.engine == "script":
        return None
    needs = [need for need in (_of_precision(spec), _of_attention(spec)) if need is not None]
    return max(needs, key=lambda need: need.least, default=None)


def _of_attention(spec: JobSpec) -> CapabilityNeed | None:
    least = ATTENTION_CAPABILITIES.get(spec.model.attention or "")
    if least is None:
        return None
    instead = 'set model.attention = "sdpa", or leave it out'
    return CapabilityNeed(
        least=least, what=f'model.attention = "{spec.model.attention}"', instead=instead
    )


def _of_precision(spec: JobSpec) -> CapabilityNeed | None:
    if spec.train.precision != "bf16":
        return None
    instead = 'set train.precision = "fp16"'
    if spec.engine == "deepspeed":
        instead += ", and fp16.enabled in place of bf16.enabled in deepspeed.config"
    return CapabilityNeed(least=BF16_CAPABILITY, what='train.precision = "bf16"', instead=instead)


class QueuePlacement:
    """The requests of the queued jobs, and the scheduler's decisions over them."""

    def __init__(
        self,
        store: Store,
        parking: JobGuard,
        limits: LimitsConfig,
        grace_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._grace = grace_seconds
        self._parking = parking
        self._limits = limits
        self._requests: dict[int, Request] = {}

    def requests_of(self, queued: Sequence[int]) -> list[Request]:
        """What each job needs, worked out once; those that cannot be read are held."""
        known, self._requests = self._requests, {}
        for job_id in queued:
            request = known.get(job_id) or self._request_of(job_id, None)
            if request is not None:
                self._requests[job_id] = request
        return list(self._requests.values())

    def expect(self, job: JobRow) -> None:
        """A job that was queued, while it need not be read again."""
        request = self._request_of(job.id, job)
        if request is not None:
            self._requests[job.id] = request

    def _request_of(self, job_id: int, job: JobRow | None) -> Request | None:
        with self._parking.guard(job_id, parking.NEEDING) as reach:
            reach()
            return request_of(job_id, (job or self._store.job(job_id)).spec, self._grace)
        return None

    def decide(self, requests: Sequence[Request], snapshot: Snapshot | None) -> TickDecisions:
        """The scheduler's decisions; over the rest, where a request confuses it."""
        try:
            return self._tick(requests, snapshot)
        except Exception:  # whose it is shows one by one
            fit = []
            for request in requests:
                with self._parking.guard(request.job_id, parking.PLACING) as reach:
                    reach()
                    self._tick([request], snapshot)
                    fit.append(request)
            if len(fit) == len(requests):
                raise
            return self._tick(fit, snapshot)

    def _tick(self, requests: Sequence[Request], snapshot: Snapshot | None) -> TickDecisions:
        for request in requests:
            self._parking.touch(request.job_id, parking.PLACING)
        leases, now = self._store.leases(), time.time()
        return tick(
            requests,
            now=now,
            snapshot=snapshot,
            leases=leases,
            cpu_ranks_used=self._cpu_ranks_used(),
            limits=self._limits,
            ends=self._ends_of({lease.job_id for lease in leases}, now),
        )

    def _ends_of(self, job_ids: set[int], now: float) -> dict[int, float]:
        """When jobs that run end at the latest, of those that have a time limit."""
        found = {}
        for job_id in job_ids:
            with self._parking.guard(job_id, parking.COUNTING) as reach:
                reach()
                spec, attempts = self._store.job(job_id).reading.spec, self._store.attempts(job_id)
                left = time_limit.seconds_left(spec, attempts, clocks.now())
                if left is not None:
                    found[job_id] = now + left + self._grace
        return found

    def _cpu_ranks_used(self) -> int:
        used = 0
        for job in self._store.jobs((*states.ACTIVE, states.HELD)):
            with self._parking.guard(job.id, parking.COUNTING) as reach:
                reach()
                spec = job.reading.spec
                if spec is None or spec.device != "cpu":
                    continue
                if job.state in states.ACTIVE or self._store.open_tokens(job.id):
                    used += spec.world_size
        return used
