"""The waiting jobs, grouped by the resources that they need. A scheduler pass checks each group
instead of every job.

Ten thousand jobs have only a few dozen different needs. In each group, jobs are sorted by priority,
the highest first, and then by age, the oldest first (`Request.user_order`). If the first job of a
group must wait, the jobs after it are not checked, except jobs that may borrow reserved resources
because they end before the reservation begins (`scheduler`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from zerotoolsd.queue.scheduling.resource_requests import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    user_order_limit,
)


class Group:
    """The waiting jobs of one user with the same need, in ascending order of `Request.user_order`.
    The group needs 16 bytes for each job.
    """

    def __init__(self, need: ResourceNeed, uid: int = 0) -> None:
        self.need = need
        self.uid = uid
        self.user_orders = array("q")
        self._lasts = array("d")

    def add(self, request: Request) -> None:
        """Insert a job into the group, at its place in the order."""
        place = bisect_left(self.user_orders, request.user_order)
        self.user_orders.insert(place, request.user_order)
        self._lasts.insert(place, math.inf if request.lasts is None else request.lasts)

    def remove(self, user_order: int) -> None:
        """Remove the job with the order number `user_order` from the group."""
        place = bisect_left(self.user_orders, user_order)
        del self.user_orders[place], self._lasts[place]

    def lasts(self, place: int) -> float | None:
        """Return the longest time, in seconds, for which the job at index `place` will hold its
        resources; None if it has no time limit.
        """
        found = self._lasts[place]
        return None if found == math.inf else found

    def next_place(self, place: int, now: float, latest: float) -> int | None:
        """Return the index of the first job, from index `place` on, that would end by the time
        `latest` if it started `now`; None if there is no such job.
        """
        if latest == math.inf:
            return place if place < len(self.user_orders) else None
        if latest < now:
            return None
        lasts = self._lasts
        return next((i for i in range(place, len(lasts)) if now + lasts[i] <= latest), None)


class PendingQueue:
    """All waiting jobs, each in the group for its need and its user."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._groups: dict[tuple[ResourceNeed, int], Group] = {}
        self.ranks: Mapping[int, int] = MappingProxyType({})
        """The rank of each user who has jobs that wait for GPUs, keyed by uid (`fair_share`)."""
        self._place_of: dict[int, tuple[Group, int]] = {}
        """For each job number: the group of the job, and its order number in the group."""
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        """Add a waiting job. A second call for the same job does nothing."""
        if request.job_id not in self._place_of:
            key = request.need, request.uid
            group = self._groups.setdefault(key, Group(*key))
            group.add(request)
            self._place_of[request.job_id] = group, request.user_order

    def remove(self, job_id: int) -> None:
        """Remove the job `job_id`. Do nothing if it does not wait."""
        place = self._place_of.pop(job_id, None)
        if place is None:
            return
        group, user_order = place
        group.remove(user_order)
        if not group.user_orders:
            del self._groups[group.need, group.uid]

    def need_of(self, job_id: int) -> ResourceNeed | None:
        """Return the need of the waiting job `job_id`; None if it does not wait."""
        place = self._place_of.get(job_id)
        return None if place is None else place[0].need

    def need_and_order(self, job_id: int) -> tuple[ResourceNeed, int] | None:
        """Return the need of the waiting job `job_id`, and its position in the order of all jobs
        (`resource_requests.order_of`). Return None if the job does not wait.
        """
        place = self._place_of.get(job_id)
        return None if place is None else (place[0].need, order_of(place[1], self.rank(place[0])))

    def uid_of(self, job_id: int) -> int:
        """Return the uid of the user of the waiting job `job_id`; -1 if the job does not wait."""
        place = self._place_of.get(job_id)
        return -1 if place is None else place[0].uid

    def rank(self, group: Group) -> int:
        """Return the fair-share rank of the user of a group. For jobs that need no GPUs, all users
        have the same rank.
        """
        return 0 if group.need.gpus is None else self.ranks.get(group.uid, 0)

    def place_of(self, job_id: int) -> tuple[int, int] | None:
        """Return the position of the job, from 1, among the waiting jobs of its kind, and the
        number of these jobs.

        The two kinds are jobs with GPUs and jobs with CPU ranks. Return None if the job does not
        wait.
        """
        found = self._place_of.get(job_id)
        if found is None:
            return None
        own, user_order = found
        groups = self.groups(gpus=own.need.gpus is not None)
        before: int = sum(
            bisect_left(
                each.user_orders, user_order_limit(user_order, self.rank(each), self.rank(own))
            )
            for each in groups
        )
        return before + 1, sum(len(group.user_orders) for group in groups)

    def groups(self, *, gpus: bool) -> list[Group]:
        """Return the groups of jobs that need GPUs if `gpus` is True; otherwise the groups of jobs
        that need no GPUs.
        """
        return [each for each in self._groups.values() if (each.need.gpus is not None) == gpus]

    @property
    def highest_priority(self) -> int | None:
        """Return the highest priority of a waiting job; None if no job waits."""
        first = min((each.user_orders[0] for each in self._groups.values()), default=None)
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
        """Return the number of jobs that wait for GPUs, for each user (by uid)."""
        found: dict[int, int] = {}
        for group in self.groups(gpus=True):
            found[group.uid] = found.get(group.uid, 0) + len(group.user_orders)
        return found

    @property
    def uids(self) -> set[int]:
        """Return the uids of users who have jobs that wait for GPUs."""
        return {uid for need, uid in self._groups if need.gpus is not None}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._place_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._place_of)

    def __len__(self) -> int:
        return len(self._place_of)
