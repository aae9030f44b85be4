"""How long a job may run: what is left of it, and whether it ended an attempt. No clock here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.jobs.durations import in_words, seconds_of
from zerotools.jobs.spec import JobSpec
from zerotoolsd.store.rows import AttemptRow
from zerotoolsd.supervisor.plan import OUTSIDE

REASON = "time limit"
"""Why an attempt is asked to stop, as its ranks and its supervisor are told."""


def seconds_left(spec: JobSpec | None, attempts: Sequence[AttemptRow], now: float) -> float | None:
    """What the attempts, added up, leave of the job's limit; None if it has none."""
    if spec is None or spec.time_limit is None:
        return None
    used = sum((one.ended or now) - one.started for one in attempts if one.started is not None)
    return seconds_of(spec.time_limit) - used


def that_ended(
    spec: JobSpec | None, record: Mapping[str, Any], *, asked: bool = False
) -> str | None:
    """The limit in words, where the attempt that left `record` was asked to stop at it.

    `asked`: this daemon did. On a full disk its supervisor heard the signal, and not the reason.
    """
    heard = record.get("stop_reason")
    if spec is None or spec.time_limit is None or heard not in (REASON, *(OUTSIDE,) * asked):
        return None
    return in_words(seconds_of(spec.time_limit))
