"""Makes the metrics of `/metrics`. The names of the metrics must not change, because users' queries
contain them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import zerotools
from zerotools.jobs import states
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.attempts.metric_counters import MetricCounters
from zerotoolsd.interface.prometheus_text import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    MetricFamily,
    MetricSample,
)
from zerotoolsd.queue.rows import Lease

MOST_GPUS = 64
"""The largest number of GPUs that have series, even if a driver reports more."""


@dataclass(frozen=True, kw_only=True)
class MetricsMoment:
    """The state of the queue and the machine when the metrics are requested.

    Attributes:
        jobs: state -> number of jobs.
        fenced: the UUIDs of fenced GPUs.
        uptime_seconds: how long the daemon has been running.
        outbox: `waiting`, or a result such as `delivered` -> number of notifications.
        stalled: the number of running jobs that make no progress.
    """

    jobs: Mapping[str, int]
    leases: Collection[Lease]
    fenced: Collection[str]
    snapshot: Snapshot | None
    uptime_seconds: float
    outbox: Mapping[str, int]
    stalled: int = 0


def metric_families(tally: MetricCounters, now: MetricsMoment) -> Iterator[MetricFamily]:
    """Yield all metric families. Each has at least one sample, unless its value is unknown."""
    yield _gauge("zerotools_build_info", "The daemon.", 1, version=zerotools.__version__)
    yield _gauge("zerotools_uptime_seconds", "Since the daemon started.", now.uptime_seconds)
    jobs = (
        MetricSample(now.jobs.get(state, 0), {"state": state}) for state in sorted(states.STATES)
    )
    yield MetricFamily("zerotools_jobs", GAUGE, "Jobs by state.", tuple(jobs))
    yield _gauge(
        "zerotools_jobs_stalled",
        "Running jobs that made no progress for longer than their deadline.",
        now.stalled,
    )
    yield _histogram(
        "zerotools_queue_wait_seconds",
        "From the submit of a job to its first launch.",
        tally.queue_waits.samples(),
    )
    attempts = (
        MetricSample(count, {"outcome": outcome, "cause": cause})
        for (outcome, cause), count in sorted(tally.attempts.items())
    )
    yield MetricFamily(
        "zerotools_attempts", COUNTER, "Attempts that ended, by outcome and cause.", tuple(attempts)
    )
    yield from _training(tally)
    yield from _gpus(now)
    yield _histogram(
        "zerotools_db_commit_seconds", "Commits of the queue.", tally.commits.samples()
    )
    yield _gauge(
        "zerotools_loop_lag_seconds",
        "The longest delay of the daemon's event loop since the last scrape.",
        tally.pop_lag(),
    )
    yield _gauge(
        "zerotools_notifications_waiting",
        "Notifications that were not delivered yet.",
        now.outbox.get("waiting", 0),
    )
    ends = (
        MetricSample(now.outbox.get(result, 0), {"result": result})
        for result in ("delivered", "dropped", "expired")
    )
    yield MetricFamily(
        "zerotools_notifications",
        COUNTER,
        "Notifications that no longer wait, by result.",
        tuple(ends),
    )


def _training(tally: MetricCounters) -> Iterator[MetricFamily]:
    yield _counter(
        "zerotools_attempt_seconds", "Duration of the attempts that ended.", tally.attempt_seconds
    )
    yield _counter(
        "zerotools_training_seconds",
        "Part of zerotools_attempt_seconds in steps that were saved or finished their job.",
        tally.training_seconds,
    )
    ratio = tally.training_seconds / tally.attempt_seconds if tally.attempt_seconds else None
    known = {
        "zerotools_effective_training_ratio": (
            "zerotools_training_seconds divided by zerotools_attempt_seconds.",
            ratio,
        ),
        "zerotools_checkpoint_seconds": (
            "Duration of the last save of the attempt that ended last.",
            tally.checkpoint_seconds,
        ),
        "zerotools_checkpoint_bytes": (
            "The size of the last checkpoint of the attempt that ended last.",
            tally.checkpoint_bytes,
        ),
        "zerotools_checkpoint_last_verified_timestamp_seconds": (
            "Time at which the newest verified checkpoint of ended attempts was saved.",
            tally.verified_at,
        ),
    }
    for name, (meaning, value) in known.items():
        if value is not None:
            yield _gauge(name, meaning, value)


def _gpus(now: MetricsMoment) -> Iterator[MetricFamily]:
    if now.snapshot is None:
        return
    gpus = [gpu for gpu in now.snapshot.gpus[:MOST_GPUS] if gpu.uuid is not None]
    yield MetricFamily(
        "zerotools_gpu_memory_used_bytes",
        GAUGE,
        "Memory in use of each GPU, by holder: a job; processes left by a job, if no job has "
        "the GPU; or others.",
        tuple(_memory(gpus, now.leases)),
    )
    yield MetricFamily(
        "zerotools_gpu_fenced",
        GAUGE,
        "Whether the GPU is broken, so that no job gets it.",
        tuple(MetricSample(gpu.uuid in now.fenced, {"gpu_uuid": str(gpu.uuid)}) for gpu in gpus),
    )
    if now.snapshot.gpus_age_seconds is not None:
        yield _gauge(
            "zerotools_nvml_age_seconds",
            "Age of the newest measurement of the GPUs.",
            now.snapshot.gpus_age_seconds,
        )


def _memory(gpus: Iterable[Gpu], leases: Collection[Lease]) -> Iterator[MetricSample]:
    of_jobs = {lease.gpu_uuid for lease in leases if lease.held_by is None}
    outlived = {lease.gpu_uuid for lease in leases} - of_jobs
    for gpu in gpus:
        owner = "job" if gpu.uuid in of_jobs else "residue" if gpu.uuid in outlived else "foreign"
        if gpu.memory_used_bytes is not None:
            labels = {"gpu_uuid": str(gpu.uuid), "owner": owner}
            yield MetricSample(gpu.memory_used_bytes, labels)


def _gauge(name: str, meaning: str, value: float, **labels: str) -> MetricFamily:
    return MetricFamily(name, GAUGE, meaning, (MetricSample(value, labels),))


def _counter(name: str, meaning: str, value: float) -> MetricFamily:
    return MetricFamily(name, COUNTER, meaning, (MetricSample(value),))


def _histogram(name: str, meaning: str, samples: tuple[MetricSample, ...]) -> MetricFamily:
    return MetricFamily(name, HISTOGRAM, meaning, samples)
