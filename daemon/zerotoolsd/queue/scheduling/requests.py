"""The requests of queued jobs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityNeed:
    """The least compute capability of GPUs for a job, the setting that needs it, and the
    alternative."""

    least: tuple[int, int]
    what: str
    instead: str


DECLARED = "memory.host"
"""Source of a need of host memory that the job file declares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeed:
    """The resources that a job needs: `world_size` of `gpus` (any of so many, or a list of indices
    and UUIDs), or so many CPU ranks. It uses `gpu_bytes` of each GPU, or the whole (None), and
    `host_bytes` of the host's memory. Jobs with the same need are equal to the scheduler, except
    for their age and duration.

    `host_from` is the source of that number, `host_advice` a setting that needs less. GPUs with
    less than `least_gpu_bytes` are used only if there are not enough others.

    An elastic job may start with any of `sizes`, ascending, and `world_size` is the first. It waits
    only for that.
    """

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
        """Return the largest size that is at most `most`; None if all are larger."""
        fits = [size for size in self.sizes or (self.world_size,) if size <= most]
        return fits[-1] if fits else None

    @property
    def is_elastic(self) -> bool:
        """Whether it may have several sizes."""
        return len(self.sizes) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The request of a queued job.

    `lasts` is the longest time in seconds that it holds the resources; None: unknown. A higher
    `priority` goes first.
    """

    job_id: int
    need: ResourceNeed
    lasts: float | None = None
    priority: int = 0
    uid: int = 0

    @property
    def turn(self) -> int:
        """The sort key of waiting jobs: the smaller turn goes first. Higher priority comes first,
        then earlier submission."""
        return self.job_id - self.priority * _IDS


_IDS = 2**53
"""More than any job's number."""
_RANKS = 2**32
"""More than there are users."""


def order_of(turn: int, rank: int) -> int:
    """Return the position of a job of a user with this rank.

    It depends on priority, then on the rank, the smaller one first (`fair_share`), then on age.
    `job_of` accepts it, too.
    """
    return ((turn // _IDS) * _RANKS + rank) * _IDS + turn % _IDS


def turns_before(turn: int, rank: int, own_rank: int) -> int:
    """Return the limit below which turns of a user with `rank` come before `turn`.

    `own_rank` is the rank of the user of `turn`.
    """
    if rank == own_rank:
        return turn
    return (turn // _IDS + (rank < own_rank)) * _IDS


def job_of(turn: int) -> int:
    """Return the job of this turn."""
    return turn % _IDS


def priority_of(turn: int) -> int:
    """Return the priority of the job of this turn."""
    return -(turn // _IDS)


def request_at(turn: int, need: ResourceNeed, lasts: float | None, uid: int = 0) -> Request:
    """Return the request of the job of this turn."""
    return Request(job_id=turn % _IDS, need=need, lasts=lasts, priority=priority_of(turn), uid=uid)


def count(number: int, what: str) -> str:
    """Format a count: `2 GPUs`, `1 GPU`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


ATTENTION_CAPABILITIES = {
    "flash_attention_2": (8, 0),
    "flash_attention_3": (9, 0),
    "flex_attention": (7, 0),
}
"""The first GPUs that each runs on: by the README of flash-attention 2 and 3, and of Triton, into
which torch compiles flex_attention."""


def capability_need(spec: JobSpec) -> CapabilityNeed | None:
    """Return the highest requirement of the job on a GPU; None: any GPU works, as far as is
    known."""
    if spec.engine == "script":
        return None
    needs = [need for need in (_of_precision(spec), _of_attention(spec)) if need is not None]
    return max(needs, key=lambda need: need.least, default=None)


def _of_attention(spec: JobSpec) -> CapabilityNeed | None:
    least = ATTENTION_CAPABILITIES.get(spec.model.attention or "")
    if least is None:
        return None
    instead = 'set model.attention = "sdpa", or leave it out'
    return CapabilityNeed(
        least=least, what=f'model.attention = "{spec.model.attention}"', instead=instead
    )


def _of_precision(spec: JobSpec) -> CapabilityNeed | None:
    if spec.train.precision != "bf16":
        return None
    instead = 'set train.precision = "fp16"'
    if spec.engine == "deepspeed":
        instead += ", and fp16.enabled instead of bf16.enabled in deepspeed.config"
    return CapabilityNeed(least=BF16_CAPABILITY, what='train.precision = "bf16"', instead=instead)
