"""The holders of the resources that a job waits for, by the leases and time limits of the
scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from zerotools.jobs import states
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.scheduling.requests import count
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import YieldRow, without_steps
from zerotoolsd.service.explain.explanation import Holder, QueuePlace

MOST_HOLDERS = 64


def place_of(placement: QueuePlacement, job_id: int) -> QueuePlace | None:
    """Return the position of the job in the line; None if it does not wait there."""
    need, place = placement.line.need_of(job_id), placement.line.place_of(job_id)
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
    """Return the holders of the resources that a waiting job needs, at most MOST_HOLDERS.

    The list is empty for a job that does not wait. `whose` returns the name of a user.
    """
    need = placement.line.need_of(job_id)
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


def room_of(store: Store, job: JobRow) -> list[YieldRow]:
    """Return the yields of the job and the yields for it, the newest MOST_HOLDERS.

    Steps of other users' jobs are left out.
    """
    rows = [*store.yields.of(job.id), *store.yields.for_job(job.id)]
    newest = sorted(rows, key=lambda row: row.asked)[-MOST_HOLDERS:]
    return [row if _is_told(store, row, job) else without_steps(row) for row in newest]


def _is_told(store: Store, row: YieldRow, job: JobRow) -> bool:
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
            yield Holder(what=count(ranks, "CPU rank"), job_id=job.id, attempt=attempt)


def _since(store: Store, holder: Holder) -> float | None:
    attempts, number = store.attempts(holder.job_id), holder.attempt
    return attempts[number - 1].started if number and number <= len(attempts) else None
