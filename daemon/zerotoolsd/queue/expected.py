"""What a job is expected to take of memory that has declared nothing: the estimate of its submit,
or, where an attempt of it has got as far as training, what that took at most.

    submit            the estimate goes into the job's row (`admission.foreseen.expected_text`)
    before a start    SURE of it counts, as it may be too high by a quarter
    after an attempt  its peaks count, and the estimate no more; of an elastic job, the larger,
                      since the attempt may have had fewer ranks
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.queue.rows import AttemptRow

SURE = 0.75
"""An estimate may be too high by a quarter with short sequences
(benchmarks/results/memory-accuracy.md)."""
ESTIMATED, MEASURED = "estimated", "as an earlier attempt took"
SMALL = 2**30
"""Less than this of the host counts as nothing: no job waits for it, and none behind one that does.
"""
_DIGITS = 5
_KEPT = 256


@dataclass(frozen=True, kw_only=True)
class ExpectedMemory:
    """Bytes of the host for all ranks, and of each GPU at least; 0: nothing is expected. `source`
    is one of ESTIMATED and MEASURED; `less_host` is a setting that would take less of the host."""

    host_bytes: int = 0
    gpu_bytes: int = 0
    source: str = ESTIMATED
    less_host: str | None = None


NOTHING_EXPECTED = ExpectedMemory()


def expected_of(
    spec: JobSpec, text: str | None, attempts: Iterable[AttemptRow], context: int
) -> ExpectedMemory:
    """Of a job with `text` in its row, after these attempts; `context` is what CUDA takes of a GPU
    beside what ranks report. What the job declares is no matter of this."""
    estimate = _estimate(text)
    results = [attempt.result for attempt in attempts if attempt.result]
    trained = [result for result in results if _count(result, "steps_done")]
    host = max((_count(result, "peak_host_bytes") for result in trained), default=0)
    gpu = max((_count(result, "peak_gpu_bytes") for result in trained), default=0)
    found = ExpectedMemory(
        host_bytes=_counted(int(SURE * _count(estimate, "host"))),
        gpu_bytes=int(SURE * _count(estimate, "gpu")),
        less_host=_text(estimate, "less_host"),
    )
    if not host:
        return found
    measured = ExpectedMemory(
        host_bytes=_counted(host),
        gpu_bytes=gpu + context if gpu else found.gpu_bytes,
        source=MEASURED,
        less_host=found.less_host,
    )
    larger = spec.size_range is not None and found.host_bytes > measured.host_bytes
    return found if larger else measured


def rounded(size: int) -> int:
    """Up to five binary digits, 3 % more at most: jobs that need about the same need the same."""
    shift = max(0, size.bit_length() - _DIGITS)
    return -(-size >> shift) << shift


def _counted(size: int) -> int:
    return 0 if size < SMALL else rounded(size)


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
