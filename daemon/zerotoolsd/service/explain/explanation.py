"""Explains one job, from the facts that the scheduler and the lifecycle use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.tables.spec import ALWAYS
from zerotoolsd.attempts.end.cause_of_end import same_before, saved_step
from zerotoolsd.interface.api_types import AttemptView, Event, JobView
from zerotoolsd.queue.retry_causes import USUAL, rule_of
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.queue.tables.preemption_table import YieldRow


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """`position` (from 1) among `of` jobs waiting for `what` (GPUs, CPU ranks); it needs
    `needs`."""

    position: int
    of: int
    what: str
    needs: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of `what` (`GPU 3`, `2 CPU ranks`) since `since`, until `until` at the latest.

    Both are in seconds since the epoch; None: unknown. `process`: a process that outlived its job.
    `user`: the owner of the job, if jobs of several users run.
    """

    what: str
    job_id: int
    attempt: int | None
    since: float | None = None
    until: float | None = None
    process: str | None = None
    user: str | None = None


def explain(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    view: JobView,
    events: Iterable[Event],
    *,
    notices: Iterable[Notice] = (),
    room: Iterable[YieldRow] = (),
    size: str | None = None,
    place: QueuePlace | None,
    holders: Iterable[Holder],
) -> dict[str, Any]:
    """Return the explanation as JSON values.

    `view` is the job as its owner may see it. `place` is its position if it waits, and `holders`
    have the resources that it needs. `notices` were not delivered yet. `size` tells whether a
    running elastic job would grow.
    """
    return {
        "id": job.id,
        "name": view.name,
        "state": view.state,
        "why": view.reason,
        "phase": view.phase,
        "size": size,
        "place": None if place is None else asdict(place),
        "holders": [asdict(holder) for holder in holders],
        "retries": _retries(job, attempts),
        "end": _last_end(attempts, view.attempts),
        "resumed_from": view.attempts[-1].resumed_from if view.attempts else None,
        "room": [asdict(each) for each in room],
        "notifications": [
            {
                "notice": each.notice,
                "channel": each.channel,
                "tries": each.tries,
                "next_try": each.next_at,
                "trouble": each.trouble,
            }
            for each in notices
        ],
        "events": [event.to_json() for event in events],
    }


def _retries(job: JobRow, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    spec = job.reading.spec
    ended = [attempt for attempt in attempts if attempt.state == ENDED]
    cause = ended[-1].cause if ended else None
    is_always = spec is None or spec.retry == ALWAYS
    rule = USUAL if is_always else rule_of(cause)
    times = {states.WAITING_RETRY: job.standing.eligible_at, states.WAITING: job.begin}
    next_try = times.get(job.state)
    return {
        "used": job.standing.restarts_used,
        "max": spec.max_restarts if spec else 0,
        "rule": "always" if is_always else "auto",
        "cause": cause,
        "after": None if cause is None else rule.words,
        "cause_ends": same_before(cause, ended) if cause is not None else 0,
        "cause_max": None if cause is None else rule.retries,
        "counts": rule.counts,
        "next_try": next_try,
    }


def _last_end(
    attempts: Sequence[AttemptRow], views: Sequence[AttemptView]
) -> dict[str, Any] | None:
    """Return the end of the newest ended attempt; None without one."""
    found = [pair for pair in zip(attempts, views, strict=False) if pair[0].state == ENDED]
    if not found:
        return None
    row, view = found[-1]
    record: Mapping[str, Any] = row.result or {}
    rank = record.get("rank")
    return {
        "attempt": row.number,
        "cause_kind": row.cause,
        "cause": view.cause,
        "rank": rank if type(rank) is int and 0 <= rank < 2**31 else None,
        "exit_code": view.exit_code,
        "signal": view.signal,
        "steps_done": view.steps_done,
        "saved_step": saved_step(record) or None,
        "ended": row.ended,
    }
