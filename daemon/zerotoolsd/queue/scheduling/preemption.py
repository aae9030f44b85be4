"""Which jobs that run make room for one of higher priority that waits. Pure.

A job that waits is asked for in the terms of the scheduler itself: it would start, in a pass over
it and all that come before it, if these jobs gave back what they have (`MachineNow.without`). So
whatever else keeps a job from its start (a stranger on a GPU, a fence, the limits of its user, jobs
before it for which GPUs are kept) keeps others from making room for it, too: nobody saves and waits
for nothing.

Of jobs with a lower priority those of the lowest make room first; of one priority elastic ones that
have more than their least, as they are queued again and go on at once with the GPUs that are left;
then the one that has run for the shortest time. Each is added until the job would start; then those
that turn out not to be needed are left alone again, the dearest first. Example: on 4 GPUs job 1 has
2 of them (priority 0, for 5 hours), job 2 has 1 (priority 0, for 10 minutes), job 3 has 1 (priority
-5); job 4 of 2 GPUs and priority 3 comes. Job 3 is asked, then job 2: that is enough. Had job 4
asked for 3 GPUs, job 1 would be added, and job 2 left alone again, as 1 and 3 are enough.

Those that were asked already count as gone, so that no round asks more than are needed. Jobs are
looked at in their turn, until there are MOST_LOOKED_AT needs and users for which nobody can make
room.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zerotoolsd.queue.scheduling.demands import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    request_at,
)
from zerotoolsd.queue.scheduling.line import WaitingLine
from zerotoolsd.queue.scheduling.machine_now import MachineNow, RunningJob

MOST_LOOKED_AT = 8


@dataclass(frozen=True, kw_only=True)
class MakesRoom:
    """Job `job_id` is to save and give back what it has, for `for_job`, of `priority`."""

    job_id: int
    for_job: int
    priority: int


@dataclass(frozen=True, kw_only=True)
class PreemptionRules:
    """Who may be asked: attempts that have run for `after_seconds`, of anybody or (`own_only`) of
    the user of the job that waits."""

    after_seconds: float
    own_only: bool = False

    def allow(self, job: RunningJob, request: Request) -> bool:
        """Whether `job` is to make room for one that waits, if that needs it."""
        return (
            not job.leaves
            and request.need.world_size > 0  # what is only watched needs no room
            and job.priority < request.priority
            and job.ran_seconds >= self.after_seconds
            and (not self.own_only or job.uid == request.uid)
        )


def who_makes_room(
    line: WaitingLine,
    machine: MachineNow,
    running: Sequence[RunningJob],
    rules: PreemptionRules,
    saves: Callable[[int], bool],
) -> list[MakesRoom]:
    """Whom to ask. `saves` says of a job that runs whether it goes on where it was, if it is asked
    to end: no other one is asked. Nothing of `line` starts by itself now."""
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
    """What one job after another needs, behind those that come before it."""

    def __init__(self, line: WaitingLine, machine: MachineNow) -> None:
        self._machine = machine
        self._before = WaitingLine()
        self._before.ranks = line.ranks
        self._now: Request | None = None
        self._hopeless: set[tuple[ResourceNeed, int]] = set()

    def comes_to(self, request: Request) -> bool:
        """`request` is next. Whether nobody can make room for it, as for one before it of the same
        need and user."""
        self._now = request
        self._before.add(request)
        return (request.need, request.uid) in self._hopeless

    def waits(self) -> int:
        """Nobody can make room for this one. For how many that was found, of each need and user
        once."""
        assert self._now is not None
        self._hopeless.add((self._now.need, self._now.uid))
        return len(self._hopeless)

    def is_free(self, gone: Sequence[RunningJob]) -> bool:
        """Whether the job would start, if these gave back what they have."""
        assert self._now is not None
        decisions = self._machine.without(gone).decide(self._before)
        return any(start.job_id == self._now.job_id for start in decisions.starts)

    def fewest(self, leave: Sequence[RunningJob], jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """Of `jobs`, the cheapest first, those that are enough beside `leave`; empty: all of them
        are not."""
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
    """Seconds until an attempt has run for long enough that has not yet; inf: there is none."""
    left = [rules.after_seconds - job.ran_seconds for job in running if not job.leaves]
    return min((seconds for seconds in left if seconds > 0), default=float("inf"))


def _dearness(job: RunningJob) -> tuple[int, bool, float, int]:
    return job.priority, not job.can_shrink, job.ran_seconds, -job.job_id


def _in_turn(line: WaitingLine, machine: MachineNow, lowest: int) -> Iterator[Request]:
    """Those with a priority above `lowest`, in the order of their turns; of each need and user no
    more than could ever start."""
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
