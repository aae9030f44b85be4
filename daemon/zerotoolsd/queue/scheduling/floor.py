"""The GPUs while one pass gives them away: who has each, until when, and for whom it is kept.

A GPU is free, ours (leased, given away in this pass, or kept for a job that waits), or neither
(strangers, errors, processes that outlived their job). In a pass free ones become ours, and nothing
else changes. The scheduler relies on that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.scheduling.demands import Request, ResourceNeed
from zerotoolsd.queue.scheduling.gpus import shortage, usable

NOTHING_KEPT = "nothing is kept for it meanwhile"


@dataclass(frozen=True, kw_only=True)
class FloorView:
    """What a job found that waits: the sentences of the GPUs that are not free, by index, and
    which of them are ours."""

    gpus: Sequence[Gpu]
    occupied: dict[int, str]
    ours: frozenset[int]

    def why(self, need: ResourceNeed) -> str:
        """Why a job with this need waits."""
        wanted, missing = usable(need, self.gpus)
        if missing is not None:
            return missing
        sentence = shortage(need.world_size, wanted, self.occupied)
        free = sum(gpu.index not in self.occupied for gpu in wanted)
        coming = sum(gpu.index in self.ours for gpu in wanted)
        unkept = free and free + coming < need.world_size
        return f"{sentence}; {NOTHING_KEPT}" if unkept else sentence


class GpuFloor:
    """The GPUs of one pass over the queue."""

    def __init__(self, gpus: Sequence[Gpu], occupied: dict[int, str], now: float) -> None:
        self.gpus = gpus
        self.occupied = occupied
        self._now = now
        self._ours: dict[int, float | None] = {}
        """When our own jobs give a GPU back at the latest, by index; None: nobody knows."""
        self._kept: dict[int, float | None] = {}
        """Of GPUs that are kept for a waiting job: when that can start at the earliest."""

    def runs_until(self, uuid: str, end: float | None) -> None:
        """One of our jobs holds the GPU `uuid`, until `end` at the latest."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                self._ours[gpu.index] = end

    def view(self) -> FloorView:
        """How it stands now."""
        return FloorView(gpus=self.gpus, occupied=dict(self.occupied), ours=frozenset(self._ours))

    def take(self, request: Request, wanted: Sequence[Gpu]) -> list[Gpu] | None:
        """The GPUs on which `request` starts, in the order of `wanted`; None: it waits."""
        free = [gpu.index for gpu in wanted if gpu.index not in self.occupied]
        lent = [gpu.index for gpu in wanted if self._is_lent(gpu.index, request)]
        chosen = (free + lent)[: request.need.world_size]
        if len(chosen) < request.need.world_size:
            return None
        given = [gpu for gpu in wanted if gpu.index in chosen]
        self._give(given, request)
        return given

    def _is_lent(self, index: int, request: Request) -> bool:
        start = self._kept.get(index)
        return (
            start is not None and request.lasts is not None and self._now + request.lasts <= start
        )

    def _give(self, gpus: Sequence[Gpu], request: Request) -> None:
        end = None if request.lasts is None else self._now + request.lasts
        for gpu in gpus:
            self._kept.pop(gpu.index, None)
            self._ours[gpu.index] = end
            self.occupied[gpu.index] = f"GPU {gpu.index} is held by job {request.job_id}"

    def keep(self, request: Request, wanted: Sequence[Gpu]) -> bool:
        """Keep what is free of `wanted` for `request`, which waits, if it needs nothing else but
        the end of our own jobs. Whether anything was kept."""
        free = [gpu for gpu in wanted if gpu.index not in self.occupied]
        coming = [gpu for gpu in wanted if gpu.index in self._ours]
        lacking = request.need.world_size - len(free)
        if len(coming) < lacking:
            return False
        start = self._when_given_back(coming, lacking)
        for gpu in free:
            # It is given back when the job that it may be lent to ends: that is before `start`.
            self._ours[gpu.index] = None
            self._kept[gpu.index] = start
            self.occupied[gpu.index] = f"GPU {gpu.index} is kept for job {request.job_id}"
        return bool(free)

    def _when_given_back(self, coming: Sequence[Gpu], number: int) -> float | None:
        """When `number` of these GPUs are given back at the latest."""
        ends = sorted(end for gpu in coming if (end := self._ours[gpu.index]) is not None)
        return ends[number - 1] if len(ends) >= number else None

    def latest_end(self, need: ResourceNeed, wanted: Sequence[Gpu]) -> float:
        """When a job of this need must be over to be lent what is kept; -inf: nothing is lent."""
        free = sum(gpu.index not in self.occupied for gpu in wanted)
        starts = [self._kept.get(gpu.index) for gpu in wanted]
        known = sorted((start for start in starts if start is not None), reverse=True)
        lacking = need.world_size - free
        return known[lacking - 1] if 0 < lacking <= len(known) else -math.inf
