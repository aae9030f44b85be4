"""Predicts the memory of a job that does not declare its memory.

At first, the expected memory is the estimate that was made at submit. After an attempt has trained,
the expected memory is the peak memory of that attempt.

    at submit         the estimate is stored in the job's row (`memory_check.expected_text`)
    before a start    the estimate times SURE is used: an estimate may be a quarter too high
    after an attempt  its peaks replace the estimate; an elastic job keeps an estimate that is
                      larger, because the attempt may have had fewer ranks

An attempt may be stopped because memory ran out, before the attempt saved anything. The next
attempt would be stopped in the same way. So the expectation changes:

    host memory ran out        after each such attempt, a quarter more memory is expected
    a shared GPU's memory ran out
                               the job gets only GPUs that it does not share
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.tables.preemption_table import RELIEVE, RELIEVE_GPU

SURE = 0.75
"""Before a start, an estimate is multiplied by this factor, because with short sequences it may be
too high by a quarter (benchmarks/results/memory-accuracy.md).
"""
ESTIMATED, MEASURED = "estimated", "as much as an earlier attempt used"
RELIEVED = "more than the use of an attempt that was stopped because memory ran out"
GROWTH = 1.25
SMALL = 2**30
"""If a job needs less host memory than this many bytes, its need counts as 0.

Such a job does not wait for host memory, and does not delay jobs behind it that need host
memory.
"""
_DIGITS, _MOST_TIMES = 5, 64
_KEPT = 256


@dataclass(frozen=True, kw_only=True)
class ExpectedMemory:
    """The memory, in bytes, that a job is expected to need: `host_bytes` for all ranks together,
    and at least `gpu_bytes` on each GPU. 0 means that nothing is known.

    Attributes:
        source: ESTIMATED (before an attempt), MEASURED (by an attempt) or RELIEVED (increased after
            memory ran out).
        less_host: a setting with which the job would need less host memory.
        alone: the job must not share GPUs.
    """

    host_bytes: int = 0
    gpu_bytes: int = 0
    source: str = ESTIMATED
    less_host: str | None = None
    alone: bool = False


NOTHING_EXPECTED = ExpectedMemory()


def expected_of(
    spec: JobSpec, text: str | None, attempts: Iterable[AttemptRow], context: int
) -> ExpectedMemory:
    """Return the expected memory of the job `spec`, which has had these `attempts`.

    `text` is the estimate that was stored with the job. `context` is the GPU memory, in bytes, that
    CUDA uses in addition to the memory that a rank reports. Memory that the job declares is
    ignored.
    """
    estimate = _estimate(text)
    results = [attempt.result for attempt in attempts if attempt.result]
    trained = [result for result in results if _count(result, "steps_done")]
    host = max((_count(result, "peak_host_bytes") for result in trained), default=0)
    gpu = max((_count(result, "peak_gpu_bytes") for result in trained), default=0)
    found = ExpectedMemory(
        host_bytes=_counted(int(SURE * _count(estimate, "host"))),
        gpu_bytes=int(SURE * _count(estimate, "gpu")),
        less_host=_text(estimate, "less_host"),
        alone=_is_alone(results),
    )
    if times := _relieved(results):
        peak = max(_count(result, "peak_host_bytes") for result in results[-times:])
        most = max(int(peak * GROWTH**times), host, found.host_bytes)
        return replace(found, host_bytes=_counted(most), source=RELIEVED)
    if not host:
        return found
    measured = ExpectedMemory(
        host_bytes=_counted(host),
        gpu_bytes=gpu + context if gpu else found.gpu_bytes,
        source=MEASURED,
        less_host=found.less_host,
        alone=found.alone,
    )
    larger = spec.size_range is not None and found.host_bytes > measured.host_bytes
    return found if larger else measured


class ExpectedOfJobs:
    """Caches the expected memory of jobs, because reading the results of attempts may take long.

    `attempts` returns the attempts of the job with a given number.
    """

    def __init__(self, attempts: Callable[[int], Sequence[AttemptRow]], context: int) -> None:
        self._attempts, self._context = attempts, context
        self._known: dict[int, ExpectedMemory] = {}

    def of(self, job: JobRow) -> ExpectedMemory:
        """Return the expected memory of a job."""
        spec = job.reading.spec
        if spec is None or (job.started is None and job.expected is None):
            return NOTHING_EXPECTED
        if job.id not in self._known:
            attempts = () if job.started is None else self._attempts(job.id)
            self._known[job.id] = expected_of(spec, job.expected, attempts, self._context)
        return self._known[job.id]

    def forget(self, job_ids: Iterable[int]) -> None:
        """Remove these jobs from the cache, because they have changed."""
        for job_id in job_ids:
            self._known.pop(job_id, None)

    def forget_all(self) -> None:
        """Remove all jobs from the cache, because any of them may have changed."""
        self._known.clear()


def _relieved(results: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of the newest attempts, in a row, were stopped because host memory ran out
    and saved no checkpoint.
    """
    times = 0
    for result in reversed(results):
        if result.get("stop_reason") != RELIEVE or result.get("checkpoint") is not None:
            break
        times += 1
    return min(times, _MOST_TIMES)


def _is_alone(results: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the job must not share GPUs with other jobs.

    The result is True if an attempt was stopped because the memory of a shared GPU ran out, and
    neither this attempt nor a later one has saved a checkpoint.
    """
    for result in reversed(results):
        if result.get("checkpoint") is not None:
            return False
        if result.get("stop_reason") == RELIEVE_GPU:
            return True
    return False


def rounded_need(size: int) -> int:
    """Round bytes up to five significant binary digits, so that similar jobs have the same need."""
    shift = max(0, size.bit_length() - _DIGITS)
    return -(-size >> shift) << shift


def _counted(size: int) -> int:
    return 0 if size < SMALL else rounded_need(size)


@lru_cache(_KEPT)
def _estimate(text: str | None) -> Mapping[str, Any]:
    try:
        tree = json.loads(text or "{}")
    except (ValueError, RecursionError):
        tree = {}
    return MappingProxyType(tree if isinstance(tree, dict) else {})


def _count(tree: Mapping[str, Any], key: str) -> int:
    value = tree.get(key)
    return value if type(value) is int and 0 <= value < 2**63 else 0


def _text(tree: Mapping[str, Any], key: str) -> str | None:
    value = tree.get(key)
    return value if isinstance(value, str) else None
