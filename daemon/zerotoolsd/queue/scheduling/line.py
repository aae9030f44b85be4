"""The jobs that wait, by what they need: a pass looks at each need, not at each job.

Ten thousand jobs ask for a few dozen different things. Of each, the one of the highest priority
comes first, and of those the oldest (`Request.turn`); the jobs behind one that waits need not be
looked at, unless they may be lent what is kept for others, which only those can that end in time
(`scheduler`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from zerotoolsd.queue.scheduling.demands import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    turns_before,
)


class Group:
    """The jobs of one need and one user, by ascending turn: 16 bytes each."""

    def __init__(self, need: ResourceNeed, uid: int = 0) -> None:
        self.need = need
        self.uid = uid
        self.turns = array("q")
        self._lasts = array("d")

    def add(self, request: Request) -> None:
        """Put the job into its place."""
        place = bisect_left(self.turns, request.turn)
        self.turns.insert(place, request.turn)
        self._lasts.insert(place, math.inf if request.lasts is None else request.lasts)

    def remove(self, turn: int) -> None:
        """Take out the job that has this turn in the group."""
        place = bisect_left(self.turns, turn)
        del self.turns[place], self._lasts[place]

    def lasts(self, place: int) -> float | None:
        """As of `Request`, of the job at this place."""
        found = self._lasts[place]
        return None if found == math.inf else found

    def next_place(self, place: int, now: float, latest: float) -> int | None:
        """The first job from `place` on that, started `now`, ends at `latest` at the latest."""
        if latest == math.inf:
            return place if place < len(self.turns) else None
        if latest < now:
            return None
        lasts = self._lasts
        return next((i for i in range(place, len(lasts)) if now + lasts[i] <= latest), None)


class WaitingLine:
    """All jobs that wait, each in the group of its need and its user."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._groups: dict[tuple[ResourceNeed, int], Group] = {}
        self.ranks: Mapping[int, int] = MappingProxyType({})
        """Who goes first among the users whose jobs want GPUs, by uid (`fair_share`)."""
        self._place_of: dict[int, tuple[Group, int]] = {}
        """The group of each job, and its turn."""
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        """A job waits; nothing happens if it did already."""
        if request.job_id not in self._place_of:
            key = request.need, request.uid
            group = self._groups.setdefault(key, Group(*key))
            group.add(request)
            self._place_of[request.job_id] = group, request.turn

    def remove(self, job_id: int) -> None:
        """The job does not wait; nothing happens if it did not."""
        place = self._place_of.pop(job_id, None)
        if place is None:
            return
        group, turn = place
        group.remove(turn)
        if not group.turns:
            del self._groups[group.need, group.uid]

    def need_of(self, job_id: int) -> ResourceNeed | None:
        """What a job that waits needs."""
        place = self._place_of.get(job_id)
        return None if place is None else place[0].need

    def need_and_order(self, job_id: int) -> tuple[ResourceNeed, int] | None:
        """What a job that waits needs, and where it comes (`demands.order_of`)."""
        place = self._place_of.get(job_id)
        return None if place is None else (place[0].need, order_of(place[1], self.rank(place[0])))

    def uid_of(self, job_id: int) -> int:
        """Whose a job is that waits; -1: it does not."""
        place = self._place_of.get(job_id)
        return -1 if place is None else place[0].uid

    def rank(self, group: Group) -> int:
        """The rank of the group's user; all are the same where no GPUs are wanted."""
        return 0 if group.need.gpus is None else self.ranks.get(group.uid, 0)

    def place_of(self, job_id: int) -> tuple[int, int] | None:
        """The job's place, from 1, among those that wait for the same kind of thing (GPUs, or
        ranks of the CPU), and how many these are; None: it does not wait."""
        found = self._place_of.get(job_id)
        if found is None:
            return None
        own, turn = found
        groups = self.groups(gpus=own.need.gpus is not None)
        before: int = sum(
            bisect_left(each.turns, turns_before(turn, self.rank(each), self.rank(own)))
            for each in groups
        )
        return before + 1, sum(len(group.turns) for group in groups)

    def groups(self, *, gpus: bool) -> list[Group]:
        """Those that need GPUs, or those that need none."""
        return [each for each in self._groups.values() if (each.need.gpus is not None) == gpus]

    @property
    def highest_priority(self) -> int | None:
        """That of the first job; None: none waits."""
        first = min((each.turns[0] for each in self._groups.values()), default=None)
        return None if first is None else priority_of(first)

    @property
    def wants_gpus(self) -> bool:
        """Whether any job does."""
        return any(need.gpus is not None for need, _ in self._groups)

    @property
    def wants_host(self) -> bool:
        """Whether any job waits for memory of the host."""
        return any(need.host_bytes for need, _ in self._groups)

    def waiting_for_gpus(self) -> dict[int, int]:
        """How many jobs of each user wait for GPUs."""
        found: dict[int, int] = {}
        for group in self.groups(gpus=True):
            found[group.uid] = found.get(group.uid, 0) + len(group.turns)
        return found

    @property
    def uids(self) -> set[int]:
        """Whose jobs want GPUs."""
        return {uid for need, uid in self._groups if need.gpus is not None}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._place_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._place_of)

    def __len__(self) -> int:
        return len(self._place_of)
