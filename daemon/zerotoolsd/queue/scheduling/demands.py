"""What queued jobs ask of the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityNeed:
    """The least compute capability of GPUs that will do, what needs it, and what to set instead."""

    least: tuple[int, int]
    what: str
    instead: str


DECLARED = "memory.host"
"""How a need of host memory is known that the job file says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeed:
    """What a job needs: `world_size` of `gpus` (any of so many, or a list of indices and UUIDs),
    or so many CPU ranks. Of each GPU it takes `gpu_bytes`, or the whole (None); of the host's
    memory `host_bytes`. Jobs of the same need are the same to the scheduler, but for their age and
    how long they last.

    `host_from` says how that is known, `host_advice` what would take less. A GPU of fewer than
    `least_gpu_bytes` is passed over where there are enough others.

    An elastic job may start with any of `sizes`, ascending, of which `world_size` is the first: it
    waits for that alone."""

    world_size: int
    gpus: int | tuple[int | str, ...] | None
    capability: CapabilityNeed | None = None
    gpu_bytes: int | None = None
    host_bytes: int = 0
    host_from: str = DECLARED
    host_advice: str | None = None
    least_gpu_bytes: int = 0
    sizes: tuple[int, ...] = ()

    def size_within(self, most: int) -> int | None:
        """The largest size that is at most `most`; None: there is none."""
        fits = [size for size in self.sizes or (self.world_size,) if size <= most]
        return fits[-1] if fits else None

    @property
    def is_elastic(self) -> bool:
        """Whether it may have several sizes."""
        return len(self.sizes) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a queued job asks for.

    `lasts` is how many seconds it holds that at most; None: nobody knows. A higher `priority` goes
    first.
    """

    job_id: int
    need: ResourceNeed
    lasts: float | None = None
    priority: int = 0
    uid: int = 0

    @property
    def turn(self) -> int:
        """Of two jobs that wait, the one with the smaller turn goes first: the one of higher
        priority, and of two of the same priority the one that was submitted earlier."""
        return self.job_id - self.priority * _IDS


_IDS = 2**53
"""More than any job's number."""
_RANKS = 2**32
"""More than there are users."""


def order_of(turn: int, rank: int) -> int:
    """Where a job of a user with this rank comes: by its priority, then by the rank, the smaller
    one first (`fair_share`), then by its age. `job_of` takes it, too."""
    return ((turn // _IDS) * _RANKS + rank) * _IDS + turn % _IDS


def turns_before(turn: int, rank: int, own_rank: int) -> int:
    """Which turns of a user with `rank` come before this one, of a user with `own_rank`: those that
    are smaller than the result."""
    if rank == own_rank:
        return turn
    return (turn // _IDS + (rank < own_rank)) * _IDS


def job_of(turn: int) -> int:
    """The job that has this turn."""
    return turn % _IDS


def priority_of(turn: int) -> int:
    """The priority of the job that has this turn."""
    return -(turn // _IDS)


def request_at(turn: int, need: ResourceNeed, lasts: float | None, uid: int = 0) -> Request:
    """The request of the job that has this turn."""
    return Request(job_id=turn % _IDS, need=need, lasts=lasts, priority=priority_of(turn), uid=uid)


def count(number: int, what: str) -> str:
    """`2 GPUs`, `1 GPU`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
