"""The reason of each waiting job, computed on request.

A pass over ten thousand jobs does not make ten thousand sentences: it records the state that jobs
found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from zerotoolsd.queue.scheduling.gpu_pass_state import GpuAllocationView
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.requests import ResourceNeed, count


@dataclass(frozen=True)
class CpuWaits:
    """`first` is the job that waits for CPU ranks before all others; `used` of `limit` are in
    use."""

    first: int | None
    used: int
    limit: int

    def why(self, job_id: int, need: ResourceNeed) -> str | None:
        """Return why a job waits; None if it came after the pass, which will start it."""
        if self.first is None:
            return None
        head = f"needs {count(need.world_size, 'CPU rank')}"
        if job_id != self.first:
            return f"{head}: waits behind job {self.first}"
        return f"{head}: {self.used} of limits.cpu_ranks = {self.limit} are in use"


class FloorHistory:
    """The GPUs as jobs found them, one after the other."""

    def __init__(self) -> None:
        self._behind: list[int] = []
        self._views: list[GpuAllocationView] = []
        self._said: dict[tuple[int, ResourceNeed], str] = {}

    def begin(self, view: GpuAllocationView) -> None:
        """Record the GPUs as the first job finds them."""
        self._views.append(view)

    def since(self, order: int, view: GpuAllocationView) -> None:
        """Record the GPUs as the jobs after position `order` (`requests.order_of`) find them.

        Call it in the order of the positions.
        """
        self._behind.append(order)
        self._views.append(view)

    def why(self, order: int, need: ResourceNeed) -> str | None:
        """Return why the job at this position waits; None if the GPUs were not checked yet."""
        if not self._views:
            return None
        place = bisect_left(self._behind, order)
        if (place, need) not in self._said:
            self._said[place, need] = self._views[place].why(need)
        return self._said[place, need]


class Waits(Mapping[int, str]):
    """A sentence for every job of `line` that is not one of `started`.

    It follows the line: a job that leaves it has no sentence any more.
    """

    def __init__(
        self,
        line: PendingQueue,
        started: Set[int],
        passed_over: Mapping[int, str],
        cpus: CpuWaits,
        blind: str | None,
        history: FloorHistory,
        host: Mapping[ResourceNeed, str] = MappingProxyType({}),
        users: Mapping[tuple[int, ResourceNeed], str] = MappingProxyType({}),
    ) -> None:
        """Keep the parts of the reasons.

        `host`: why jobs of a need wait for host memory; `users`: why jobs of a user and a need wait
        for other jobs of that user.
        """
        self._users = users
        self._line = line
        self._started = started
        self._passed_over = passed_over
        self._cpus = cpus
        self._blind = blind
        self._history = history
        self._host = host

    def passing_over(self, passed_over: Mapping[int, str]) -> Waits:
        """Return the same reasons, except that these jobs may not start for the given reasons."""
        known = (self._cpus, self._blind, self._history, self._host, self._users)
        return Waits(self._line, self._started, passed_over, *known)

    def __getitem__(self, job_id: int) -> str:
        found = self._line.need_and_order(job_id)
        why = None if found is None else self._why(job_id, *found)
        if why is None:
            raise KeyError(job_id)
        return why

    def _why(self, job_id: int, need: ResourceNeed, order: int) -> str | None:
        if job_id in self._passed_over:
            return self._passed_over[job_id]
        if job_id in self._started:
            return None
        if (whose := (self._line.uid_of(job_id), need)) in self._users:
            return self._users[whose]
        if need in self._host:
            return self._host[need]
        if need.gpus is None:
            return self._cpus.why(job_id, need)
        if self._blind is not None:
            return f"waits for the GPUs to be seen: {self._blind}"
        return self._history.why(order, need)

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and self.get(job_id) is not None

    def __iter__(self) -> Iterator[int]:
        return (job_id for job_id in self._line if job_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
