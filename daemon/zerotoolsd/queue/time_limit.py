"""The time limit of a job: how much remains, and whether it ended an attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.jobs.binding.durations import in_words, seconds_of
from zerotools.jobs.tables.spec import SLURM, JobSpec
from zerotoolsd.queue.clocks import Moment, seconds_in
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.supervisor.plan import OUTSIDE, TIME_LIMIT

REASON = TIME_LIMIT
"""The reason of the stop request for the supervisor and the ranks."""


def seconds_left(spec: JobSpec | None, attempts: Sequence[AttemptRow], now: Moment) -> float | None:
    """Return the remaining seconds of a job's time limit after these attempts; None without a
    limit.

    Also None under Slurm, which enforces the limit itself: waiting in Slurm's queue does not count.
    """
    if spec is None or spec.time_limit is None or spec.backend == SLURM:
        return None
    return seconds_of(spec.time_limit) - sum(_ran(one, now) for one in attempts)


def _ran(attempt: AttemptRow, now: Moment) -> float:
    """Return the seconds that an attempt ran, as its supervisor measured them if it could."""
    if attempt.began is None:
        return 0.0
    if attempt.state != ENDED:
        return now.seconds_since(attempt.began)
    measured = seconds_in(attempt.result, "ran_seconds")
    return max(0.0, (attempt.ended or 0.0) - attempt.began.time) if measured is None else measured


def end_of(record: Mapping[str, Any], began: Moment | None, now: float) -> float:
    """Return the end of an attempt by its record, in seconds since the epoch.

    It is not before the attempt's start and not after now. The daemon may notice the end much
    later.
    """
    ended = seconds_in(record, "ended")
    earliest = began.time if began is not None else 0.0
    return now if ended is None else min(max(ended, earliest), now)


def that_ended(
    spec: JobSpec | None, record: Mapping[str, Any], *, asked: bool = False
) -> str | None:
    """Return the time limit in words if the attempt with this `record` was stopped because of it.

    `asked`: this daemon asked. On a full disk its supervisor gets the signal, but not the reason.
    """
    heard = record.get("stop_reason")
    if spec is None or spec.time_limit is None or heard not in (REASON, *(OUTSIDE,) * asked):
        return None
    return in_words(seconds_of(spec.time_limit))
