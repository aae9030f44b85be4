"""Shares of GPUs during a pass: what is left for jobs that declare how much memory they use.

A job gets the GPUs on which the least is left that is enough (best fit), so that whole ones stay
free. Where it waits, its share of those that have room is taken for it, and of those that do not,
as many as it lacks are closed to later jobs: those with the most room, which only grows then. A
closed GPU, and one that is kept whole for a waiting job, is lent to jobs that end in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.sensors.gpu_choice import place_of
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.scheduling.declared import GIB
from zerotoolsd.queue.scheduling.demands import Request, count
from zerotoolsd.queue.scheduling.gpu_words import NameJob, by_number, together


class GpuShares:
    """The room on GPUs that may be shared, by index, and those that are closed."""

    def __init__(
        self, rooms: dict[int, int], context: int, now: float, named: NameJob = by_number
    ) -> None:
        self._named = named
        self.rooms = rooms
        self.context = context
        self._now = now
        self._closed: dict[int, tuple[float | None, int]] = {}
        """When the job can start at the earliest for which a GPU is closed, and that job."""

    def copy(self) -> GpuShares:
        """As it stands now."""
        found = GpuShares(dict(self.rooms), self.context, self._now, self._named)
        found._closed = dict(self._closed)
        return found

    def share(self, request_bytes: int) -> int:
        """What a process takes of its GPU that declares so much."""
        return request_bytes + self.context

    def is_open(self, index: int, request: Request) -> bool:
        """Whether the GPU is not closed to this job."""
        if index not in self._closed:
            return True
        start, lasts = self._closed[index][0], request.lasts
        return start is not None and lasts is not None and self._now + lasts <= start

    def start_of(self, index: int) -> float | None:
        """When a GPU that is closed is needed; None: it is open, or nobody knows."""
        return self._closed[index][0] if index in self._closed else None

    def is_closed(self, index: int) -> bool:
        """Whether it is, for most."""
        return index in self._closed

    def fitting(self, request: Request, wanted: Sequence[Gpu]) -> list[Gpu]:
        """Those of `wanted` that have room for the job, the best first: of those that the owner of
        the machine prefers no less, where the least is left."""
        share = self.share(request.need.gpu_bytes or 0)
        fits = [
            gpu
            for gpu in wanted
            if self.rooms.get(gpu.index, -1) >= share and self.is_open(gpu.index, request)
        ]

        def order(gpu: Gpu) -> tuple[bool, float, int]:
            preference = 0.0 if isinstance(request.need.gpus, tuple) else place_of(gpu)
            return self.is_closed(gpu.index), preference, self.rooms[gpu.index]

        return sorted(fits, key=order)

    def take(self, index: int, request: Request) -> None:
        """The job has its share of the GPU, or it is kept for it."""
        self.rooms[index] -= self.share(request.need.gpu_bytes or 0)

    def close(self, index: int, start: float | None, job_id: int) -> None:
        """Leave what is left of the GPU to this job, which can start at `start`."""
        self._closed.setdefault(index, (start, job_id))

    def forget(self, index: int) -> None:
        """The GPU is given away as a whole."""
        self.rooms.pop(index, None)
        self._closed.pop(index, None)

    def why(
        self, request_bytes: int, size: int, wanted: Sequence[Gpu], taken: dict[int, str]
    ) -> str:
        """Why `size` of these GPUs have no room for so much each."""
        share, whys = self.share(request_bytes), dict[int, str]()
        for gpu in wanted:
            room = self.rooms.get(gpu.index)
            if room is None:
                whys[gpu.index] = taken.get(gpu.index, "cannot be shared")
            elif gpu.index in self._closed:
                whys[gpu.index] = f"kept for {self._named(self._closed[gpu.index][1])}"
            elif room < share:
                whys[gpu.index] = f"has {room / GIB:.1f} GiB left"
        head = (
            f"needs {share / GIB:.1f} GiB (memory.per_gpu, and {self.context / GIB:.1f} for the "
            f"CUDA context) on {count(size, 'GPU')}: {len(wanted) - len(whys)} of {len(wanted)} "
            "have it"
        )
        return f"{head}: {together(whys)}" if whys else head
