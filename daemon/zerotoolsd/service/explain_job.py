"""Explains why a job waits, was restarted or ended, from the data of the scheduler. The module does
no I/O.

`holders_for` finds the jobs that hold the resources for which a job waits, and the times at which
those jobs must end. It uses the scheduler's leases and the jobs' time limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import ALWAYS
from zerotoolsd.attempts.cause_of_end import same_before, saved_step
from zerotoolsd.interface.api_types import AttemptView, Event, JobView
from zerotoolsd.queue.retries_by_cause import USUAL, rule_of
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import DESTINATION, Notice
from zerotoolsd.queue.tables.preemption_table import YieldRow, without_steps


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """The position of a waiting job in the queue.

    The job is number `position` (from 1) among `of` jobs that wait for `what` ("GPUs" or
    "CPU ranks"). It needs `needs` GPUs or CPU ranks.
    """

    position: int
    of: int
    what: str
    needs: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A job, or a remaining process of a job, that holds the resource `what` (`GPU 3`,
    `2 CPU ranks`).

    Attributes:
        since, until: when the holder took the resource, and when it will release the resource at
            the latest, in seconds since the epoch; None: unknown.
        process: a process that still runs although its job has ended; None for a running job.
        user: the owner of the job, if the daemon runs jobs of several users.
    """

    what: str
    job_id: int
    attempt: int | None
    since: float | None = None
    until: float | None = None
    process: str | None = None
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The reasons why a job waits.

    `place` is its position in the queue, and `holders` have the resources that it needs. `yields`
    are the requests to yield that `yields_about` returns.
    """

    place: QueuePlace | None = None
    holders: Sequence[Holder] = ()
    yields: Sequence[YieldRow] = ()


def explain_job(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    view: JobView,
    events: Iterable[Event],
    *,
    waiting: Waiting,
    notices: Iterable[Notice] = (),
    size: str | None = None,
) -> dict[str, Any]:
    """Return the explanation as JSON values.

    `view` is the job as its owner may see it. `notices` are the undelivered notifications about the
    job. `size` is a sentence on whether a running elastic job would take more GPUs.
    """
    return {
        "id": job.id,
        "name": view.name,
        "state": view.state,
        "state_word": view.state_word,
        "state_since": view.state_since,
        "why": view.reason,
        "phase": view.phase,
        "size": size,
        "place": None if waiting.place is None else asdict(waiting.place),
        "holders": [asdict(holder) for holder in waiting.holders],
        "retries": _retries(job, attempts),
        "end": _last_end(attempts, view.attempts),
        "resumed_from": view.attempts[-1].resumed_from if view.attempts else None,
        "room": [asdict(each) for each in waiting.yields],
        "notifications": [
            {
                "notice": each.notice,
                "channel": each.channel,
                "place": each.target if each.channel == DESTINATION else None,
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
    """Return the end of the newest attempt that has ended; None if no attempt has ended."""
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


MOST_HOLDERS = 64


def place_of(placement: QueuePlacement, job_id: int) -> QueuePlace | None:
    """Return the position of the job in the queue; None if it does not wait for resources."""
    need, place = placement.pending.need_of(job_id), placement.pending.place_of(job_id)
    if need is None or place is None:
        return None
    what = "CPU ranks" if need.gpus is None else "GPUs"
    return QueuePlace(position=place[0], of=place[1], what=what, needs=need.world_size)


def holders_for(
    store: Store,
    placement: QueuePlacement,
    gpu_name: Callable[[str], str],
    job_id: int,
    whose: Callable[[int], str | None] = lambda uid: None,
) -> list[Holder]:
    """Return the holders of the resources that job `job_id` waits for, at most MOST_HOLDERS.

    The list is empty for a job that does not wait. `whose` returns the name of a user from the uid.
    """
    need = placement.pending.need_of(job_id)
    if need is None:
        return []
    if need.gpus is None:
        found = list(_of_cpus(store, placement))
    else:
        found = [replace(each, what=gpu_name(each.what)) for each in _of_gpus(store)]
    ends = placement.ends_of({each.job_id for each in found[:MOST_HOLDERS]}, time.time())
    return [
        replace(
            each,
            since=_since(store, each),
            until=None if each.process else ends.get(each.job_id),
            user=whose(store.job(each.job_id).uid),
        )
        for each in found[:MOST_HOLDERS]
    ]


def yields_about(store: Store, job: JobRow) -> list[YieldRow]:
    """Return the newest requests to yield GPUs, at most MOST_HOLDERS: requests to this job, and
    requests to other jobs in favour of this job.

    The step counts of other users' jobs are hidden.
    """
    rows = [*store.yields.of(job.id), *store.yields.for_job(job.id)]
    newest = sorted(rows, key=lambda row: row.asked)[-MOST_HOLDERS:]
    return [row if _is_visible(store, row, job) else without_steps(row) for row in newest]


def _is_visible(store: Store, row: YieldRow, job: JobRow) -> bool:
    return row.job_id == job.id or store.job(row.job_id).uid == job.uid


def _of_gpus(store: Store) -> Iterator[Holder]:
    for lease in store.leases():
        yield Holder(
            what=lease.gpu_uuid,
            job_id=lease.job_id,
            attempt=lease.attempt,
            process=lease.held_by,
        )


def _of_cpus(store: Store, placement: QueuePlacement) -> Iterator[Holder]:
    held = store.jobs_with_open_attempts(states.HELD)
    for job in reversed([*store.jobs(states.ACTIVE), *held]):
        if ranks := placement.cpu_ranks_of(job):
            attempt = len(store.attempts(job.id)) or None
            yield Holder(what=count_text(ranks, "CPU rank"), job_id=job.id, attempt=attempt)


def _since(store: Store, holder: Holder) -> float | None:
    attempts, number = store.attempts(holder.job_id), holder.attempt
    return attempts[number - 1].started if number and number <= len(attempts) else None
