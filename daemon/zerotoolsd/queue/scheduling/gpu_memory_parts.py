"""Shared GPUs during a pass: the free memory for jobs that declare theirs.

A job gets the GPUs with the least free memory that is enough (best fit), so that whole ones stay
free. If it waits, its share is reserved on GPUs with enough memory, and as many others as it lacks
are closed to later jobs: those with the most free memory, which only grows then. A closed GPU, and
one that is reserved whole for a waiting job, is lent to jobs that end in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.sensors.gpu_choice import place_of
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.scheduling.declared_memory import GIB
from zerotoolsd.queue.scheduling.gpu_messages import NameJob, by_number, together
from zerotoolsd.queue.scheduling.requests import Request, count


class GpuMemoryParts:
    """The free memory of GPUs that may be shared, by index, and the closed ones."""

    def __init__(
        self, rooms: dict[int, int], context: int, now: float, named: NameJob = by_number
    ) -> None:
        self._named = named
        self.rooms = rooms
        self.context = context
        self._now = now
        self._closed: dict[int, tuple[float | None, int]] = {}
        """By closed GPU: the earliest start of the job for which it is closed, and that job."""

    def copy(self) -> GpuMemoryParts:
        """Return a copy of the current state."""
        found = GpuMemoryParts(dict(self.rooms), self.context, self._now, self._named)
        found._closed = dict(self._closed)
        return found

    def share(self, request_bytes: int) -> int:
        """Return the bytes of its GPU that a process with this declaration uses."""
        return request_bytes + self.context

    def is_open(self, index: int, request: Request) -> bool:
        """Return whether the GPU is not closed to this job."""
        if index not in self._closed:
            return True
        start, lasts = self._closed[index][0], request.lasts
        return start is not None and lasts is not None and self._now + lasts <= start

    def start_of(self, index: int) -> float | None:
        """Return when a closed GPU is needed; None: it is open, or the time is unknown."""
        return self._closed[index][0] if index in self._closed else None

    def is_closed(self, index: int) -> bool:
        """Return whether the GPU is closed, to most jobs."""
        return index in self._closed

    def fitting(self, request: Request, wanted: Sequence[Gpu]) -> list[Gpu]:
        """Return the GPUs of `wanted` with enough memory for the job, the best first.

        GPUs that the machine's owner prefers come first, then those with the least free memory.
        """
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
        """Subtract the job's share from the GPU, for a start or a reservation."""
        self.rooms[index] -= self.share(request.need.gpu_bytes or 0)

    def close(self, index: int, start: float | None, job_id: int) -> None:
        """Reserve the rest of the GPU for this job, which can start at `start`."""
        self._closed.setdefault(index, (start, job_id))

    def forget(self, index: int) -> None:
        """Remove a GPU that is used as a whole."""
        self.rooms.pop(index, None)
        self._closed.pop(index, None)

    def why(
        self, request_bytes: int, size: int, wanted: Sequence[Gpu], taken: dict[int, str]
    ) -> str:
        """Return why `size` of these GPUs lack the memory for the request."""
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
