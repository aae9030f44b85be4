"""The state of the GPUs during one scheduler pass: who uses each GPU, until when, and which GPUs
are reserved.

A GPU is in one of three states: free; ours (leased, assigned in this pass, or reserved for a
waiting job); or unusable (because of other programs, errors, or processes of ended jobs). During a
pass, free GPUs become ours, and the free memory of shared GPUs decreases. No other change happens,
and the scheduler relies on this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.jobfile_tables.spec import MOST_RANKS
from zerotools.sensors.excluded_and_preferred_gpus import by_preference, preference_rank
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.scheduling.memory_left_for_jobs import GIB
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.suitable_gpus import (
    NameJob,
    by_number,
    merged_reasons,
    shortage_text,
    usable_gpus,
)

NOTHING_KEPT = "no GPU is reserved for it meanwhile"


@dataclass(frozen=True, kw_only=True)
class GpuAllocationView:
    """The state of the GPUs at the moment when a waiting job was checked.

    The view has the reason why each GPU is not free, keyed by index, and the GPUs that jobs of this
    daemon use.
    """

    gpus: Sequence[Gpu]
    occupied: dict[int, str]
    ours: frozenset[int]
    shares: GpuMemoryParts

    def why(self, need: ResourceNeed) -> str:
        """Return the reason why a job that needs the resources `need` waits."""
        wanted, missing = usable_gpus(need, self.gpus)
        if missing is not None:
            return missing
        if need.gpu_bytes is not None:
            return self.shares.why(need.gpu_bytes, need.world_size, wanted, self.occupied)
        sentence = shortage_text(need.world_size, wanted, self.occupied)
        free = sum(gpu.index not in self.occupied for gpu in wanted)
        coming = sum(gpu.index in self.ours for gpu in wanted)
        unkept = free and free + coming < need.world_size
        return f"{sentence}; {NOTHING_KEPT}" if unkept else sentence


class GpuAllocation:
    """The assignment of GPUs to jobs during one scheduler pass over the queue."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        occupied: dict[int, str],
        now: float,
        free_bytes: dict[int, int] | None = None,
        context: int = 0,
        named: NameJob = by_number,
    ) -> None:
        """Begin with the state of the GPUs before the pass.

        `occupied` has the reason why a GPU cannot be used, keyed by index. `free_bytes` has the
        free memory in bytes of each GPU that may be shared, keyed by index. `context` is the GPU
        memory in bytes that a process uses in addition to its declaration. `named` returns the text
        that names a job in messages.
        """
        self._named = named
        self.gpus = gpus
        self.context = context
        self._shares = GpuMemoryParts(free_bytes or {}, context, now, named)
        self.occupied = occupied
        self._now = now
        self._ours: dict[int, float | None] = {}
        """For each GPU index, the time by which all jobs of this daemon on the GPU have ended; None
        if unknown.
        """
        self._reserved_until: dict[int, float | None] = {}
        """For each reserved GPU, the earliest time at which the waiting job can start."""

    def runs_until(self, uuid: str, end: float | None) -> None:
        """Record that a job of this daemon uses the GPU `uuid`, until the time `end` at the latest
        (None: unknown).
        """
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                self._ours[gpu.index] = self._later(gpu.index, end)

    def _later(self, index: int, end: float | None) -> float | None:
        """Return the time at which all jobs on the GPU will have ended, including one that ends at
        `end`; None if one of the ends is unknown.
        """
        before = self._ours.get(index, -math.inf)
        return None if end is None or before is None else max(before, end)

    def view(self) -> GpuAllocationView:
        """Return the current state of the GPUs, which explains why jobs wait."""
        return GpuAllocationView(
            gpus=self.gpus,
            occupied=dict(self.occupied),
            ours=frozenset(self._ours),
            shares=self._shares.copy(),
        )

    def assign(
        self, request: Request, wanted: Sequence[Gpu], most: int = MOST_RANKS
    ) -> list[Gpu] | None:
        """Assign as many of the GPUs `wanted` as `request` can use, but at most `most`. Return them
        in the order of `wanted`. Return None if the job has to wait, because too few are available.
        """
        if request.need.gpu_bytes is not None:
            return self._assign_shares(request, wanted, most)
        chosen_by_job = isinstance(request.need.gpus, tuple)
        in_turn = list(wanted) if chosen_by_job else by_preference(wanted)
        free = [gpu.index for gpu in in_turn if gpu.index not in self.occupied]
        lent = [gpu.index for gpu in in_turn if self._is_lent(gpu.index, request)]
        size = request.need.size_within(min(most, len(free) + len(lent)))
        if size is None:
            return None
        chosen = (free + lent)[:size]
        given = [gpu for gpu in wanted if gpu.index in chosen]
        self._occupy(given, request)
        return given

    def _assign_shares(
        self, request: Request, wanted: Sequence[Gpu], most: int
    ) -> list[Gpu] | None:
        fits = self._shares.fitting(request, wanted)
        size = request.need.size_within(min(most, len(fits)))
        if size is None:
            return None
        chosen = {gpu.index for gpu in fits[:size]}
        end = None if request.lasts is None else self._now + request.lasts
        for index in chosen:
            self._reserved_until.pop(index, None)  # it stays closed to jobs that do not end in time
            self._share(index, request, end, "shared by ")
        return [gpu for gpu in wanted if gpu.index in chosen]

    def _share(self, index: int, request: Request, end: float | None, how: str) -> None:
        self._shares.subtract(index, request)
        self._ours[index] = self._later(index, end)
        self.occupied.setdefault(index, how + self._named(request.job_id))

    def _is_lent(self, index: int, request: Request) -> bool:
        start = self._reserved_until.get(index)
        return (
            start is not None and request.lasts is not None and self._now + request.lasts <= start
        )

    def _occupy(self, gpus: Sequence[Gpu], request: Request) -> None:
        end = None if request.lasts is None else self._now + request.lasts
        for gpu in gpus:
            self._reserved_until.pop(gpu.index, None)
            self._shares.forget(gpu.index)
            self._ours[gpu.index] = end
            self.occupied[gpu.index] = self._named(request.job_id)

    def reserve(self, request: Request, wanted: Sequence[Gpu]) -> bool:
        """Reserve the free GPUs among `wanted` for `request`, if the request waits for nothing
        except other jobs of this daemon.

        Return whether any GPU was reserved.
        """
        if request.need.gpu_bytes is not None:
            return self._reserve_shares(request, wanted)
        free = [gpu for gpu in wanted if gpu.index not in self.occupied]
        coming = [gpu for gpu in wanted if gpu.index in self._ours]
        lacking = request.need.world_size - len(free)
        if len(coming) < lacking:
            return False
        start = self._when_given_back(coming, lacking)
        for gpu in free:
            # A job that borrows the GPU ends, and returns it, before `start`.
            self._ours[gpu.index] = None
            self._reserved_until[gpu.index] = start
            self.occupied[gpu.index] = f"kept for {self._named(request.job_id)}"
        soonest = sorted(coming, key=lambda gpu: _or_never(self._ours[gpu.index]))[:lacking]
        return self._close([*free, *soonest], start, request) or bool(free)

    def _close(self, gpus: Sequence[Gpu], start: float | None, request: Request) -> bool:
        """Reserve the shared GPUs among `gpus` for the job of `request`, which can start at `start`
        (None: unknown). Return whether one of them was not reserved before.
        """
        found = [
            gpu.index
            for gpu in gpus
            if gpu.index in self._shares.free_bytes and not self._shares.is_closed(gpu.index)
        ]
        for index in found:
            self._shares.close(index, start, request.job_id)
        return bool(found)

    def _reserve_shares(self, request: Request, wanted: Sequence[Gpu]) -> bool:
        fits = [
            gpu
            for gpu in self._shares.fitting(request, wanted)
            if not self._shares.is_closed(gpu.index)
        ]
        coming = [gpu for gpu in wanted if gpu.index in self._ours and gpu not in fits]
        lacking = request.need.world_size - len(fits)
        if len(coming) < lacking:
            return False
        start = self._when_given_back(coming, lacking)
        for gpu in fits:
            self._share(gpu.index, request, None, "kept for ")
        free_bytes = self._shares.free_bytes
        with_enough = sorted(coming, key=lambda gpu: -free_bytes.get(gpu.index, 0))[
            : max(0, lacking)
        ]
        return self._close(with_enough, start, request) or bool(fits)

    def _when_given_back(self, coming: Sequence[Gpu], number: int) -> float | None:
        """Return the time at which `number` of the GPUs in `coming` will be free. Jobs use these
        GPUs now. Return None if the time is unknown.
        """
        ends = sorted(end for gpu in coming if (end := self._ours[gpu.index]) is not None)
        return ends[number - 1] if len(ends) >= number else None

    def latest_end(self, need: ResourceNeed, wanted: Sequence[Gpu]) -> float:
        """Return the time by which a job with this need must end in order to borrow reserved GPUs;
        minus infinity if it cannot borrow enough GPUs.
        """
        if need.gpu_bytes is not None:
            return self._latest_end_of_shares(need, wanted)
        free = sum(gpu.index not in self.occupied for gpu in wanted)
        starts = [self._reserved_until.get(gpu.index) for gpu in wanted]
        known = sorted((start for start in starts if start is not None), reverse=True)
        lacking = need.world_size - free
        return known[lacking - 1] if 0 < lacking <= len(known) else -math.inf

    def _latest_end_of_shares(self, need: ResourceNeed, wanted: Sequence[Gpu]) -> float:
        share = self._shares.share(need.gpu_bytes or 0)
        with_enough = [
            gpu.index for gpu in wanted if self._shares.free_bytes.get(gpu.index, -1) >= share
        ]
        shut = [index for index in with_enough if self._shares.is_closed(index)]
        starts = [self._shares.start_of(index) for index in shut]
        known = sorted((start for start in starts if start is not None), reverse=True)
        lacking = need.world_size - (len(with_enough) - len(shut))
        return known[lacking - 1] if 0 < lacking <= len(known) else -math.inf


def _or_never(end: float | None) -> float:
    return math.inf if end is None else end


class GpuMemoryParts:
    """The free memory of each GPU that may be shared, and the reservations of these GPUs. Both are
    keyed by GPU index.

    A reserved GPU is closed: it accepts only jobs that end before the reservation begins.
    """

    def __init__(
        self, free_bytes: dict[int, int], context: int, now: float, named: NameJob = by_number
    ) -> None:
        self._named = named
        self.free_bytes = free_bytes
        self.context = context
        self._now = now
        self._closed: dict[int, tuple[float | None, int]] = {}
        """For each closed GPU, the earliest start of the job that reserved it, and the number
        of that job.
        """

    def copy(self) -> GpuMemoryParts:
        """Return an independent copy."""
        found = GpuMemoryParts(dict(self.free_bytes), self.context, self._now, self._named)
        found._closed = dict(self._closed)
        return found

    def share(self, request_bytes: int) -> int:
        """Return the bytes of a GPU that a process uses if it declares `request_bytes`."""
        return request_bytes + self.context

    def is_open(self, index: int, request: Request) -> bool:
        """Return whether the job may use the free memory of the GPU with this index."""
        if index not in self._closed:
            return True
        start, lasts = self._closed[index][0], request.lasts
        return start is not None and lasts is not None and self._now + lasts <= start

    def start_of(self, index: int) -> float | None:
        """Return the time at which the job that reserved the GPU can start. Return None if no job
        has reserved it, or if the time is unknown.
        """
        return self._closed[index][0] if index in self._closed else None

    def is_closed(self, index: int) -> bool:
        """Return whether the GPU with this index is reserved for a waiting job."""
        return index in self._closed

    def fitting(self, request: Request, wanted: Sequence[Gpu]) -> list[Gpu]:
        """Return the GPUs of `wanted` that have enough free memory for the job, the best GPU first.

        GPUs that are not reserved for another job come first. Then GPUs that the administrator
        prefers come first, unless the job names its GPUs. Among equal GPUs, the one with the least
        free memory comes first.
        """
        share = self.share(request.need.gpu_bytes or 0)
        fits = [
            gpu
            for gpu in wanted
            if self.free_bytes.get(gpu.index, -1) >= share and self.is_open(gpu.index, request)
        ]

        def order(gpu: Gpu) -> tuple[bool, float, int]:
            preference = 0.0 if isinstance(request.need.gpus, tuple) else preference_rank(gpu)
            return self.is_closed(gpu.index), preference, self.free_bytes[gpu.index]

        return sorted(fits, key=order)

    def subtract(self, index: int, request: Request) -> None:
        """Subtract the memory that the job uses from the free memory of the GPU."""
        self.free_bytes[index] -= self.share(request.need.gpu_bytes or 0)

    def close(self, index: int, start: float | None, job_id: int) -> None:
        """Reserve the remaining memory of the GPU for the job `job_id`, which can start at the
        time `start` (None: unknown).
        """
        self._closed.setdefault(index, (start, job_id))

    def forget(self, index: int) -> None:
        """Remove the GPU from this state, because a job uses all of it."""
        self.free_bytes.pop(index, None)
        self._closed.pop(index, None)

    def why(
        self, request_bytes: int, size: int, wanted: Sequence[Gpu], taken: dict[int, str]
    ) -> str:
        """Return a sentence that explains why fewer than `size` of the GPUs `wanted` have
        enough free memory for the job.

        `taken` has the reasons why GPUs cannot be used, keyed by index.
        """
        share, whys = self.share(request_bytes), dict[int, str]()
        for gpu in wanted:
            free = self.free_bytes.get(gpu.index)
            if free is None:
                whys[gpu.index] = taken.get(gpu.index, "cannot be shared")
            elif gpu.index in self._closed:
                whys[gpu.index] = f"kept for {self._named(self._closed[gpu.index][1])}"
            elif free < share:
                whys[gpu.index] = f"has {free / GIB:.1f} GiB left"
        head = (
            f"needs {share / GIB:.1f} GiB (memory.per_gpu plus {self.context / GIB:.1f} GiB for "
            f"the CUDA context) on {count_text(size, 'GPU')}: {len(wanted) - len(whys)} of "
            f"{len(wanted)} GPUs have that much free"
        )
        return f"{head}: {merged_reasons(whys)}" if whys else head
