"""Chooses the waiting jobs that start now and their GPUs, and says why the other jobs wait. No I/O.

Jobs of higher priority start first. Jobs of the same priority start in the order of arrival,
separately for each kind of need. Resources that a waiting job could use are reserved for it, so
that no later job overtakes it. A later job that needs other resources does not wait for it.

Two rules limit reservations:

- If a job waits for something that this daemon does not control (another program uses a GPU, or a
  GPU is fenced), its start time is unknown, so it reserves nothing. If a job waits only for jobs of
  this daemon, it reserves the free resources, and no later job overtakes it.
- Reserved resources are lent to a later job if the time limits show that the later job ends before
  the waiting job can start. Example: of 4 GPUs one runs a job for 3 more hours, and a job of 4 GPUs
  waits. A job of one GPU with `time_limit = "2h"` starts; a job without a limit waits.

A pass checks only a few jobs, but has the same result as checking every job in order. During a
pass, the resources available to a job only decrease, because free GPUs only become ours
(`reserve_and_assign_gpus`). So after one job has to wait, every later job with the same need has to
wait too, unless it can borrow because it ends sooner. Checking the later job would change nothing
for other jobs: either the first job has reserved all free resources for that need; or it could
reserve nothing, and then the later job cannot either, because the sum of free resources and
resources of our jobs stays the same. So for each need, only the jobs that may start and the first
job that waits are checked. The reasons why other jobs wait are computed on request, from the state
in which these jobs would have been checked.

An elastic job may have several sizes. It takes the largest size that is available, but it waits and
reserves resources only for its smallest size. For later jobs, this is like a job of the smallest
size that takes more of the free resources. So all of the above is true for elastic jobs, too.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from zerotools.core.counts_and_sizes import count_text
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.scheduling.memory_left_for_jobs import HostMemoryPass, free_shared_memory
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import Group, PendingQueue
from zerotoolsd.queue.scheduling.reserve_and_assign_gpus import GpuAllocation, GpuAllocationView
from zerotoolsd.queue.scheduling.resource_requests import (
    Request,
    ResourceNeed,
    job_of,
    order_of,
    request_at,
)
from zerotoolsd.queue.scheduling.suitable_gpus import (
    occupied_gpus,
    usable_gpus,
    why_unknown,
)
from zerotoolsd.queue.scheduling.user_quota import UserQuota


@dataclass(frozen=True, kw_only=True)
class Start:
    """A decision of the scheduler: start this job on these GPUs."""

    job_id: int
    gpu_uuids: tuple[str, ...] = ()
    gpu_bytes: int | None = None
    """Memory of each GPU that the job gets, in bytes; None: whole GPUs."""
    gpu_part: float = 1.0
    """The fraction of each GPU for which the user of the job is booked."""
    size: int | None = None
    """Number of ranks, for an elastic job; None if the job has only one possible size."""


@dataclass(frozen=True, kw_only=True)
class PassDecisions:
    """The decisions of one scheduler pass. `waits` has the reason for each job that does not start,
    in one sentence.
    """

    starts: Sequence[Start]
    waits: Waits
    host_first: int | None = None
    """Position of the first job that waits for host memory (`DeclaredMemory`); None if no job
    does.
    """
    waits_for_host: bool = False
    """True if any job waits for host memory, which other programs can free at any time."""


class RequestError(Exception):
    """A job has invalid data (the error is `__cause__`), and the pass made no decision."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id}")
        self.job_id = job_id


def touch_nothing(job_id: int) -> None:
    """Do nothing. This is the default of `touch`."""


def run_pass(
    pending: PendingQueue, given: PassInput, touch: Callable[[int], None] = touch_nothing
) -> PassDecisions:
    """Run one scheduler pass, and return which jobs of `pending` start now. `given` is the state of
    the machine and of its users.

    `touch` is called with the number of each job that is checked. Raises RequestError.
    """
    starts: list[Start] = []
    now, limits, leases = given.now, given.limits, given.leases
    walk = _Walk(pending, False, now, given.passed_over, touch)
    host, quota = HostMemoryPass(given.memory), UserQuota(given.users)
    cpus = _assign_cpus(walk, given.cpu_ranks_used, limits, host, quota, starts)
    blind, history = None, GpuHistory()
    if pending.wants_gpus:
        blind = why_unknown(given.snapshot, now, limits)
        if blind is None and given.snapshot is not None:
            gpus, closed, named = given.snapshot.gpus, given.closed, given.named
            taken = occupied_gpus(gpus, leases, limits, given.elsewhere, closed, named)
            free_bytes = free_shared_memory(gpus, leases, taken, given.memory, closed)
            allocation = GpuAllocation(gpus, taken, now, free_bytes, given.memory.context, named)
            for lease in leases:
                if lease.held_by is None:
                    allocation.runs_until(lease.gpu_uuid, given.ends.get(lease.job_id))
            walk = _Walk(pending, True, now, given.passed_over, touch)
            _assign_gpus(walk, allocation, now, history, host, quota, starts)
    started = frozenset(start.job_id for start in starts)
    known = (cpus, blind, history, host.reasons, quota.reasons)
    waits = Waits(pending, started, given.passed_over, *known)
    first = None if host.first is None else job_of(host.first)
    return PassDecisions(
        starts=starts, waits=waits, host_first=first, waits_for_host=bool(host.reasons)
    )


class _Walk:
    """Iterates over the jobs of several groups, in the common order of all users."""

    def __init__(
        self,
        pending: PendingQueue,
        gpus: bool,
        now: float,
        passed_over: Container[int],
        touch: Callable[[int], None],
    ) -> None:
        self._now, self._passed_over, self._touch = now, passed_over, touch
        self._pending = pending
        self._heads = [self._head(group, 0) for group in pending.groups(gpus=gpus)]
        heapq.heapify(self._heads)

    def _head(self, group: Group, place: int) -> tuple[int, int, int, Group]:
        # Two groups have no job in common, so the third is never compared.
        return (
            order_of(group.user_orders[place], self._pending.rank(group)),
            place,
            id(group),
            group,
        )

    def next(self) -> tuple[Request, Group, int, int] | None:
        """Return the next job: its request, its group, its index in the group, and its position
        among all jobs. Return None after the last job.

        Raises RequestError.
        """
        while self._heads and job_of(self._heads[0][0]) in self._passed_over:
            _, place, _, group = heapq.heappop(self._heads)
            self.push_next(group, place)
        if not self._heads:
            return None
        order, place, _, group = heapq.heappop(self._heads)
        request = request_at(group.user_orders[place], group.need, group.lasts(place), group.uid)
        try:
            self._touch(request.job_id)
        except Exception as error:  # of whatever kind: that job is set aside
            raise RequestError(request.job_id) from error
        return request, group, place, order

    def push_next(self, group: Group, place: int, latest: float = math.inf) -> None:
        """Continue in `group` with the next job after `place` that would end by `latest`."""
        found = group.next_place(place + 1, self._now, latest)
        if found is not None:
            heapq.heappush(self._heads, self._head(group, found))


def _assign_cpus(
    walk: _Walk,
    used: int,
    limits: LimitsConfig,
    host: HostMemoryPass,
    users: UserQuota,
    starts: list[Start],
) -> CpuWaits:
    while (found := walk.next()) is not None:
        request, group, place, order = found
        need, left = request.need, limits.cpu_ranks - used
        if not users.allows(request):
            continue  # jobs with the same user and need do not start either
        # A job that needs more than the limit was accepted when the limit was higher: it runs
        # alone.
        runs_alone = used == 0 < limits.cpu_ranks
        if need.world_size > max(0, left) and not runs_alone:
            return CpuWaits(request.job_id, used, limits.cpu_ranks)
        if not host.fits(request, order):
            continue  # jobs with the same need do not start either
        host.subtract(need)
        size = need.size_within(min(left, users.most_ranks(request))) or need.world_size
        users.add_use(request, size)
        used += size
        starts.append(Start(job_id=request.job_id, size=size if need.is_elastic else None))
        walk.push_next(group, place)
    return CpuWaits(None, used, limits.cpu_ranks)


def _assign_gpus(
    walk: _Walk,
    allocation: GpuAllocation,
    now: float,
    history: GpuHistory,
    host: HostMemoryPass,
    users: UserQuota,
    starts: list[Start],
) -> None:
    history.begin(allocation.view())
    waiting: set[ResourceNeed] = set()
    latest_of: dict[ResourceNeed, float] = {}
    """For each need of a waiting job: the time by which a job that borrows its reserved GPUs
    must end.
    """
    wanted_by: dict[ResourceNeed, list[Gpu]] = {}
    while (found := walk.next()) is not None:
        request, group, place, order = found
        need = group.need
        if not users.allows(request):
            continue  # jobs with the same user and need do not start either
        if need in waiting and not _ends_by(request, now, latest_of[need]):
            # of another user, or it is lent to no more
            walk.push_next(group, place, latest_of[need])
            continue
        if not host.fits(request, order):
            continue  # jobs with the same need do not start either
        try:
            if need not in wanted_by:
                wanted_by[need] = usable_gpus(need, allocation.gpus)[0]
            wanted = wanted_by[need]
            given = allocation.assign(request, wanted, users.most_ranks(request))
            changed = given is not None or (
                need not in waiting and allocation.reserve(request, wanted)
            )
        except Exception as error:  # of whatever kind: that job is set aside
            raise RequestError(request.job_id) from error
        if given is None:
            waiting.add(need)
        else:
            uuids = tuple(gpu.uuid for gpu in given if gpu.uuid is not None)
            part = _part_of(given, need, allocation.context)
            starts.append(
                Start(
                    job_id=request.job_id,
                    gpu_uuids=uuids,
                    gpu_bytes=need.gpu_bytes,
                    gpu_part=part,
                    size=len(given) if need.is_elastic else None,
                )
            )
            host.subtract(need)
            users.add_use(request, len(given))
        if changed:
            history.since(order, allocation.view())
        if need in waiting:
            latest_of[need] = allocation.latest_end(need, wanted)
        walk.push_next(group, place, latest_of.get(need, math.inf))


def _part_of(given: Sequence[Gpu], need: ResourceNeed, context: int) -> float:
    whole = min((gpu.memory_total_bytes or 0 for gpu in given), default=0)
    if need.gpu_bytes is None or not whole:
        return 1.0
    return min(1.0, (need.gpu_bytes + context) / whole)


def _ends_by(request: Request, now: float, latest: float) -> bool:
    return request.lasts is not None and now + request.lasts <= latest


@dataclass(frozen=True)
class CpuWaits:
    """Computes why jobs wait for CPU ranks.

    `first` is the first job that waits for CPU ranks. `used` is the number of CPU ranks in use, and
    `limit` the largest number allowed.
    """

    first: int | None
    used: int
    limit: int

    def why(self, job_id: int, need: ResourceNeed) -> str | None:
        """Return the reason why the job waits for CPU ranks.

        Return None if the job was queued after the pass, because the next pass will check it.
        """
        if self.first is None:
            return None
        head = f"needs {count_text(need.world_size, 'CPU rank')}"
        if job_id != self.first:
            return f"{head}: waits behind job {self.first}"
        return f"{head}: {self.used} of limits.cpu_ranks = {self.limit} are in use"


class GpuHistory:
    """The states of the GPUs during a scheduler pass, in the order of the checked jobs."""

    def __init__(self) -> None:
        self._behind: list[int] = []
        self._views: list[GpuAllocationView] = []
        self._reasons: dict[tuple[int, ResourceNeed], str] = {}

    def begin(self, view: GpuAllocationView) -> None:
        """Record the state of the GPUs at the start of the pass."""
        self._views.append(view)

    def since(self, order: int, view: GpuAllocationView) -> None:
        """Record the state of the GPUs that applies to all jobs behind the position `order`
        (`resource_requests.order_of`).

        Call this method in ascending order of positions.
        """
        self._behind.append(order)
        self._views.append(view)

    def why(self, order: int, need: ResourceNeed) -> str | None:
        """Return why the job at the position `order` waits; None if the pass checked no GPUs."""
        if not self._views:
            return None
        place = bisect_left(self._behind, order)
        if (place, need) not in self._reasons:
            self._reasons[place, need] = self._views[place].why(need)
        return self._reasons[place, need]


class Waits(Mapping[int, str]):
    """The reason why each waiting job waits, keyed by job number. It has the jobs of `pending` that
    are not in `started`.

    A reason is computed when it is read. When a job leaves `pending`, its reason disappears, too.
    """

    def __init__(
        self,
        pending: PendingQueue,
        started: Set[int],
        passed_over: Mapping[int, str],
        cpus: CpuWaits,
        blind: str | None,
        history: GpuHistory,
        host: Mapping[ResourceNeed, str] = MappingProxyType({}),
        users: Mapping[tuple[int, ResourceNeed], str] = MappingProxyType({}),
    ) -> None:
        """Keep the data from which the reasons are computed.

        A need is what a job requests.

        `host`: need -> the reason why jobs with this need wait for host memory.
        `users`: (uid, need) -> the reason why this user's jobs with this need wait for other jobs
            of the user.
        """
        self._users = users
        self._pending = pending
        self._started = started
        self._passed_over = passed_over
        self._cpus = cpus
        self._blind = blind
        self._history = history
        self._host = host

    def with_passed_over(self, passed_over: Mapping[int, str]) -> Waits:
        """Return a copy with a new `passed_over`, which maps the number of each job that may not
        start now to the reason.
        """
        known = (self._cpus, self._blind, self._history, self._host, self._users)
        return Waits(self._pending, self._started, passed_over, *known)

    def __getitem__(self, job_id: int) -> str:
        found = self._pending.need_and_order(job_id)
        why = None if found is None else self._why(job_id, *found)
        if why is None:
            raise KeyError(job_id)
        return why

    def _why(self, job_id: int, need: ResourceNeed, order: int) -> str | None:
        if job_id in self._passed_over:
            return self._passed_over[job_id]
        if job_id in self._started:
            return None
        if (whose := (self._pending.uid_of(job_id), need)) in self._users:
            return self._users[whose]
        if need in self._host:
            return self._host[need]
        if need.gpus is None:
            return self._cpus.why(job_id, need)
        if self._blind is not None:
            return f"waits until the state of the GPUs is known: {self._blind}"
        return self._history.why(order, need)

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and self.get(job_id) is not None

    def __iter__(self) -> Iterator[int]:
        return (job_id for job_id in self._pending if job_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
