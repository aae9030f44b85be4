"""The part of a GPU's memory that an ended attempt left: pure.

    LEFT     processes of the attempt hold more than a usable GPU may have in use; or the GPU has no
             process at all, and more is in use than is normal
    FREE     neither, and all used memory is accounted for
    UNKNOWN  more is in use than is normal, and processes on the GPU may hold it: NVML omits
             memory shared with the host (managed memory), or does not report their memory, or, in
             a container, does not list them

Normal is the memory that no process held before the attempt began, plus a tolerance; or the limit
for a usable GPU (`limits.foreign_memory_bytes`), if that is more. So memory that a driver keeps for
itself fences no GPU, and memory of strangers who came meanwhile counts as theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, unique

from zerotools.sensors.gpu_memory_use import unaccounted_bytes
from zerotools.sensors.snapshot import Gpu

TOLERANCE = 256 << 20
"""The driver's memory use varies a little."""


@unique
class LeakVerdict(Enum):
    """Whether something is left."""

    FREE = "free"
    LEFT = "left"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MemoryLeft:
    """`held` bytes of processes of the attempt, with `pids` listed on the GPU, and `loose` bytes
    that no process holds; None: the driver does not report it."""

    verdict: LeakVerdict
    held: int | None = 0
    loose: int = 0
    pids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Total bytes, as far as they are known."""
        return (self.held or 0) + self.loose


FREE, UNKNOWN = MemoryLeft(LeakVerdict.FREE), MemoryLeft(LeakVerdict.UNKNOWN)


def normal_bytes(limit: int, baseline: int | None) -> int:
    """Return the memory that may be in use without a process; `baseline` was so before the
    attempt."""
    return max(limit, 0 if baseline is None else baseline + TOLERANCE)


def can_be_seen(gpu: Gpu) -> bool:
    """Return whether the driver reports the memory use of this GPU."""
    return gpu.error is None and gpu.mig_instances is None and gpu.memory_used_bytes is not None


def memory_left(
    gpu: Gpu,
    ours: Collection[int],
    limit: int,
    baseline: int | None,
    *,
    given: bool = False,
    lists: bool = True,
) -> MemoryLeft:
    """Return the visible memory left on a GPU by the attempt with the processes `ours` (pids).
    `given`: another job has the GPU, or a share of it. `lists`: NVML lists processes here."""
    listed = [process for process in gpu.processes if process.pid in ours]
    sizes = [process.memory_used_bytes for process in listed]
    held = None if None in sizes else sum(size or 0 for size in sizes)
    pids = tuple(process.pid for process in listed)
    unaccounted = unaccounted_bytes(gpu)
    normal = normal_bytes(limit, baseline)
    others = [p for p in gpu.processes if not p.graphics and p.pid not in ours]
    is_alone = lists and not others and not given
    loose = unaccounted if unaccounted is not None and unaccounted > normal and is_alone else 0
    if loose or (listed and (held is None or held > limit)):
        return MemoryLeft(LeakVerdict.LEFT, held, loose, pids)
    return FREE if unaccounted is not None and unaccounted <= normal else UNKNOWN
