"""Computes how much of a time limit is left, and whether the limit ended an attempt. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.jobs.binding.durations import duration_text, seconds_of
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotoolsd.queue.clocks import Moment, seconds_in
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.supervisor.attempt_plan import OUTSIDE, TIME_LIMIT

REASON = TIME_LIMIT
"""Reason that is written into the stop request when a job reaches its time limit."""
_LONGEST_RUN = 1e9
"""Longest run time, in seconds, that is believed: a job can write its own record."""


def seconds_left(spec: JobSpec | None, attempts: Sequence[AttemptRow], now: Moment) -> float | None:
    """Return the seconds that are left of the job's time limit after these attempts; None if the
    job has no limit.

    Also return None for a job under Slurm. Slurm enforces the limit itself; the time that the job
    waits in Slurm's queue does not count.
    """
    if spec is None or spec.time_limit is None or spec.backend == SLURM:
        return None
    return seconds_of(spec.time_limit) - sum(_ran(one, now) for one in attempts)


def _ran(attempt: AttemptRow, now: Moment) -> float:
    """Return for how many seconds an attempt ran, as measured by its supervisor if possible."""
    if attempt.began is None:
        return 0.0
    if attempt.state != ENDED:
        return now.seconds_since(attempt.began)
    measured = seconds_in(attempt.result, "ran_seconds")
    return max(0.0, (attempt.ended or 0.0) - attempt.began.time) if measured is None else measured


def end_of(record: Mapping[str, Any], began: Moment | None, now: float) -> float:
    """Return the end time of an attempt from its record, in seconds since the epoch.

    The result is not before the start of the attempt (`began`) and not after `now`. The daemon may
    have noticed the end much later than the attempt ended. If the clock was set back to before the
    start, the result is the start plus the time that the attempt ran.
    """
    ended = seconds_in(record, "ended")
    earliest = began.time if began is not None else 0.0
    if now < earliest:
        return earliest + min(seconds_in(record, "ran_seconds") or 0.0, _LONGEST_RUN)
    return now if ended is None else min(max(ended, earliest), now)


def that_ended(
    spec: JobSpec | None, record: Mapping[str, Any], *, asked: bool = False
) -> str | None:
    """Return the time limit as text if it ended the attempt with this `record`; None otherwise.

    `asked` is True if this daemon asked the attempt to stop at the time limit. In that case a stop
    without a reason counts, too: on a full disk, the supervisor gets the signal but not the reason.
    """
    heard = record.get("stop_reason")
    if spec is None or spec.time_limit is None or heard not in (REASON, *(OUTSIDE,) * asked):
        return None
    return duration_text(seconds_of(spec.time_limit))
