"""The choice of the running jobs that yield to a waiting job of higher priority. Pure.

The question for a waiting job is put to the scheduler itself: would the job start, in a pass over
it and all jobs before it, if these jobs freed their resources (`PassInput.without`)? So every
other obstacle to the start (a stranger on a GPU, a fence, the limits of its user, reservations for
jobs before it) also prevents a preemption: no job saves and waits in vain.

Among jobs with a lower priority, those with the lowest yield first. With equal priority, elastic
jobs above their minimum come first, because they are queued again and continue at once with the
remaining GPUs; then the one with the shortest run time. Jobs are added until the waiting job would
start; then unneeded ones are left out again, the most expensive first. Example: on 4 GPUs job 1 has
2 of them (priority 0, for 5 hours), job 2 has 1 (priority 0, for 10 minutes), job 3 has 1 (priority
-5); job 4 of 2 GPUs and priority 3 comes. Job 3 is asked, then job 2: that is enough. Had job 4
asked for 3 GPUs, job 1 would be added, and job 2 left out again, because 1 and 3 are enough.

Jobs with an earlier request count as gone, so no round asks more than necessary. Waiting jobs are
checked in their order, until no job can yield to MOST_LOOKED_AT pairs of need and user.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zerotoolsd.queue.scheduling.pass_input import PassInput, RunningJob
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.requests import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    request_at,
)

MOST_LOOKED_AT = 8


@dataclass(frozen=True, kw_only=True)
class MakesRoom:
    """Job `job_id` must save and free its resources, for `for_job`, of `priority`."""

    job_id: int
    for_job: int
    priority: int


@dataclass(frozen=True, kw_only=True)
class PreemptionRules:
    """The limits of preemption: attempts must have run for `after_seconds`, and with `own_only`
    belong to the user of the waiting job."""

    after_seconds: float
    own_only: bool = False

    def allow(self, job: RunningJob, request: Request) -> bool:
        """Return whether `job` may be preempted for `request`, if that needs its resources."""
        return (
            not job.leaves
            and request.need.world_size > 0  # a watched process needs no resources
            and job.priority < request.priority
            and job.ran_seconds >= self.after_seconds
            and (not self.own_only or job.uid == request.uid)
        )


def who_makes_room(
    line: PendingQueue,
    machine: PassInput,
    running: Sequence[RunningJob],
    rules: PreemptionRules,
    saves: Callable[[int], bool],
) -> list[MakesRoom]:
    """Return the jobs to preempt.

    `saves` returns whether a running job would continue from its state after an end; other jobs are
    not preempted. No job of `line` can start without this now.
    """
    asked: list[MakesRoom] = []
    leave = [job for job in running if job.leaves]
    lowest = min((job.priority for job in running if not job.leaves), default=None)
    if lowest is None:
        return []
    place = _Place(line, machine)
    for request in _in_turn(line, machine, lowest):
        if place.comes_to(request) or (leave and place.is_free(leave)):
            continue
        may = [job for job in running if rules.allow(job, request) and job not in leave]
        chosen = place.fewest(leave, sorted((x for x in may if saves(x.job_id)), key=_dearness))
        leave += chosen
        asked += [
            MakesRoom(job_id=job.job_id, for_job=request.job_id, priority=request.priority)
            for job in chosen
        ]
        if not chosen and place.waits() == MOST_LOOKED_AT:
            break
    return asked


class _Place:
    """The needs of one job after another, behind the jobs that come before it."""

    def __init__(self, line: PendingQueue, machine: PassInput) -> None:
        self._machine = machine
        self._before = PendingQueue()
        self._before.ranks = line.ranks
        self._now: Request | None = None
        self._hopeless: set[tuple[ResourceNeed, int]] = set()

    def comes_to(self, request: Request) -> bool:
        """Make `request` the current job; return whether its need and user are known to be
        hopeless."""
        self._now = request
        self._before.add(request)
        return (request.need, request.uid) in self._hopeless

    def waits(self) -> int:
        """Record that no job can yield to the current one; return the number of such needs and
        users."""
        assert self._now is not None
        self._hopeless.add((self._now.need, self._now.uid))
        return len(self._hopeless)

    def is_free(self, gone: Sequence[RunningJob]) -> bool:
        """Return whether the current job would start if these freed their resources."""
        assert self._now is not None
        decisions = self._machine.without(gone).decide(self._before)
        return any(start.job_id == self._now.job_id for start in decisions.starts)

    def fewest(self, leave: Sequence[RunningJob], jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """Return the cheapest subset of `jobs` that suffices together with `leave`.

        `jobs` are sorted by cost. Returns an empty list if even all of them are not enough.
        """
        if not jobs or not self.is_free([*leave, *jobs]):
            return []
        chosen: list[RunningJob] = []
        for job in jobs:
            chosen.append(job)
            if self.is_free([*leave, *chosen]):
                break
        for job in reversed(chosen[:-1]):
            fewer = [each for each in chosen if each is not job]
            if self.is_free([*leave, *fewer]):
                chosen = fewer
        return chosen


def next_look(running: Sequence[RunningJob], rules: PreemptionRules) -> float:
    """Return the seconds until another attempt has run for long enough; inf if none will."""
    left = [rules.after_seconds - job.ran_seconds for job in running if not job.leaves]
    return min((seconds for seconds in left if seconds > 0), default=float("inf"))


def _dearness(job: RunningJob) -> tuple[int, bool, float, int]:
    return job.priority, not job.can_shrink, job.ran_seconds, -job.job_id


def _in_turn(line: PendingQueue, machine: PassInput, lowest: int) -> Iterator[Request]:
    """Yield the requests with a priority above `lowest` in order, at most as many as can start.

    The limit applies to each need and user.
    """
    gpus = 0 if machine.snapshot is None else sum(not gpu.excluded for gpu in machine.snapshot.gpus)
    most = 1 + max(gpus, machine.limits.cpu_ranks)
    groups = [*line.groups(gpus=True), *line.groups(gpus=False)]
    ranks = [line.rank(group) for group in groups]
    heads = [
        (order_of(group.turns[0], ranks[number]), 0, number) for number, group in enumerate(groups)
    ]
    heapq.heapify(heads)
    while heads:
        _, place, number = heapq.heappop(heads)
        group, turn = groups[number], groups[number].turns[place]
        if priority_of(turn) <= lowest:
            return
        if place + 1 < min(most, len(group.turns)):
            order = order_of(group.turns[place + 1], ranks[number])
            heapq.heappush(heads, (order, place + 1, number))
        request = request_at(turn, group.need, group.lasts(place), group.uid)
        if request.job_id not in machine.passed_over:
            yield request
