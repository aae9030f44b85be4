"""The waiting jobs, grouped by need, so that a scheduler pass checks needs and not single jobs.

Ten thousand jobs have a few dozen different needs. In each group the highest priority comes first,
then the oldest (`Request.turn`). Jobs behind a waiting one are not checked, unless they may borrow
resources that are reserved for others, which requires that they end in time (`scheduler`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from zerotoolsd.queue.scheduling.requests import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    turns_before,
)


class Group:
    """The jobs of one need and one user, in ascending order of their turns, 16 bytes each."""

    def __init__(self, need: ResourceNeed, uid: int = 0) -> None:
        self.need = need
        self.uid = uid
        self.turns = array("q")
        self._lasts = array("d")

    def add(self, request: Request) -> None:
        """Insert the job at its place in the order."""
        place = bisect_left(self.turns, request.turn)
        self.turns.insert(place, request.turn)
        self._lasts.insert(place, math.inf if request.lasts is None else request.lasts)

    def remove(self, turn: int) -> None:
        """Remove the job with this turn from the group."""
        place = bisect_left(self.turns, turn)
        del self.turns[place], self._lasts[place]

    def lasts(self, place: int) -> float | None:
        """Return the longest duration of the job at index `place`, as in `Request`."""
        found = self._lasts[place]
        return None if found == math.inf else found

    def next_place(self, place: int, now: float, latest: float) -> int | None:
        """Return the first index, from `place` on, of a job that would end by `latest` if it
        started `now`."""
        if latest == math.inf:
            return place if place < len(self.turns) else None
        if latest < now:
            return None
        lasts = self._lasts
        return next((i for i in range(place, len(lasts)) if now + lasts[i] <= latest), None)


class PendingQueue:
    """All waiting jobs, each in the group of its need and its user."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._groups: dict[tuple[ResourceNeed, int], Group] = {}
        self.ranks: Mapping[int, int] = MappingProxyType({})
        """The rank of each user whose jobs want GPUs, by uid (`fair_share`)."""
        self._place_of: dict[int, tuple[Group, int]] = {}
        """The group and the turn of each job."""
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        """Add a waiting job. A second call has no effect."""
        if request.job_id not in self._place_of:
            key = request.need, request.uid
            group = self._groups.setdefault(key, Group(*key))
            group.add(request)
            self._place_of[request.job_id] = group, request.turn

    def remove(self, job_id: int) -> None:
        """Remove a job, if it waits."""
        place = self._place_of.pop(job_id, None)
        if place is None:
            return
        group, turn = place
        group.remove(turn)
        if not group.turns:
            del self._groups[group.need, group.uid]

    def need_of(self, job_id: int) -> ResourceNeed | None:
        """Return the need of a waiting job."""
        place = self._place_of.get(job_id)
        return None if place is None else place[0].need

    def need_and_order(self, job_id: int) -> tuple[ResourceNeed, int] | None:
        """Return the need of a waiting job, and its position (`requests.order_of`)."""
        place = self._place_of.get(job_id)
        return None if place is None else (place[0].need, order_of(place[1], self.rank(place[0])))

    def uid_of(self, job_id: int) -> int:
        """Return the uid of a waiting job; -1 if it does not wait."""
        place = self._place_of.get(job_id)
        return -1 if place is None else place[0].uid

    def rank(self, group: Group) -> int:
        """Return the rank of the group's user. Jobs that need no GPUs all have the same rank."""
        return 0 if group.need.gpus is None else self.ranks.get(group.uid, 0)

    def place_of(self, job_id: int) -> tuple[int, int] | None:
        """Return the position of a job among waiting jobs of its kind, from 1, and their number.

        The kinds are jobs with GPUs, and jobs with CPU ranks. Return None if the job does not wait.
        """
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
        """Return the groups that need GPUs, or those that need none."""
        return [each for each in self._groups.values() if (each.need.gpus is not None) == gpus]

    @property
    def highest_priority(self) -> int | None:
        """The priority of the first job; None if no job waits."""
        first = min((each.turns[0] for each in self._groups.values()), default=None)
        return None if first is None else priority_of(first)

    @property
    def wants_gpus(self) -> bool:
        """Return whether any job waits for GPUs."""
        return any(need.gpus is not None for need, _ in self._groups)

    @property
    def wants_host(self) -> bool:
        """Return whether any job waits for host memory."""
        return any(need.host_bytes for need, _ in self._groups)

    def waiting_for_gpus(self) -> dict[int, int]:
        """Return how many jobs of each user wait for GPUs."""
        found: dict[int, int] = {}
        for group in self.groups(gpus=True):
            found[group.uid] = found.get(group.uid, 0) + len(group.turns)
        return found

    @property
    def uids(self) -> set[int]:
        """The users with jobs that want GPUs."""
        return {uid for need, uid in self._groups if need.gpus is not None}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._place_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._place_of)

    def __len__(self) -> int:
        return len(self._place_of)
