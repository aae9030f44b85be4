"""What of a GPU's memory is left of an attempt that is over: pure.

    LEFT     processes of the attempt hold more than a GPU may have in use and still be given away;
             or no process is there at all, and more is in use than is normal
    FREE     neither, and all that is in use is accounted for
    UNKNOWN  more is in use than is normal, and the processes there may hold it: NVML does not count
             what they share with the host (managed memory), or does not say what they hold, or, in
             a container, that they are there

Normal is what no process held before the attempt began, and a little more; or as much as a GPU may
have in use and still be given away (`limits.foreign_memory_bytes`), where that is more. So what a
driver keeps for itself fences no GPU, and what strangers hold who came meanwhile is theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, unique

from zerotools.sensors.snapshot import Gpu
from zerotools.sensors.unaccounted import unaccounted_bytes

TOLERANCE = 256 << 20
"""A driver's own memory is not the same to the byte each time."""


@unique
class ResidueVerdict(Enum):
    """Whether something is left."""

    FREE = "free"
    LEFT = "left"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MemoryLeft:
    """`held` bytes of processes of the attempt, of which `pids` are listed on the GPU, and `loose`
    bytes that no process holds; None: the driver does not say."""

    verdict: ResidueVerdict
    held: int | None = 0
    loose: int = 0
    pids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all, as far as they are known."""
        return (self.held or 0) + self.loose


FREE, UNKNOWN = MemoryLeft(ResidueVerdict.FREE), MemoryLeft(ResidueVerdict.UNKNOWN)


def normal_bytes(limit: int, baseline: int | None) -> int:
    """What may be in use and held by no process; `baseline`: as much was before the attempt."""
    return max(limit, 0 if baseline is None else baseline + TOLERANCE)


def can_be_seen(gpu: Gpu) -> bool:
    """Whether the driver says of this GPU what is in use."""
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
    """What is left on a GPU that can be seen, of an attempt whose processes are `ours` (pids).
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
        return MemoryLeft(ResidueVerdict.LEFT, held, loose, pids)
    return FREE if unaccounted is not None and unaccounted <= normal else UNKNOWN
