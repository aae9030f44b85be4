"""The requests of queued jobs to the scheduler, and the compute capability that a job needs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityNeed:
    """The least compute capability for a job, the setting that needs it, and an alternative
    setting."""

    least: tuple[int, int]
    what: str
    instead: str


DECLARED = "memory.host"
"""`host_from` of a job that declares its host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeed:
    """The resources that a job needs.

    These are `world_size` of `gpus` (any GPUs, or a list of indices and UUIDs), or CPU ranks. It
    uses `gpu_bytes` of each GPU, or whole GPUs (None), and `host_bytes` of the host's memory. Jobs
    with the same need are equal to the scheduler, except for their age and duration.

    `host_from` is the source of `host_bytes`, `host_advice` a setting that needs less. GPUs with
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
        """Return the largest of the job's sizes that is at most `most`; None if all are larger."""
        fits = [size for size in self.sizes or (self.world_size,) if size <= most]
        return fits[-1] if fits else None

    @property
    def is_elastic(self) -> bool:
        """Return whether the job may have several sizes."""
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
        """The sort key of waiting jobs, ascending: higher priority first, then earlier
        submission."""
        return self.job_id - self.priority * _IDS


_IDS = 2**53
"""A number larger than any job id."""
_RANKS = 2**32
"""A number larger than any rank of a user."""


def order_of(turn: int, rank: int) -> int:
    """Return the position of a job in the order of all users, as a number to compare.

    It depends on priority, then on the rank of its user, the smaller one first (`fair_share`), then
    on age. `job_of` accepts it, too.
    """
    return ((turn // _IDS) * _RANKS + rank) * _IDS + turn % _IDS


def turns_before(turn: int, rank: int, own_rank: int) -> int:
    """Return a limit: turns of a user with `rank` that are below it come before `turn`.

    `own_rank` is the rank of the user of `turn`.
    """
    if rank == own_rank:
        return turn
    return (turn // _IDS + (rank < own_rank)) * _IDS


def job_of(turn: int) -> int:
    """Return the id of the job with this turn."""
    return turn % _IDS


def priority_of(turn: int) -> int:
    """Return the priority of the job with this turn."""
    return -(turn // _IDS)


def request_at(turn: int, need: ResourceNeed, lasts: float | None, uid: int = 0) -> Request:
    """Return the request of the job with this turn."""
    return Request(job_id=turn % _IDS, need=need, lasts=lasts, priority=priority_of(turn), uid=uid)


def count(number: int, what: str) -> str:
    """Format a count: `2 GPUs`, `1 GPU`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


ATTENTION_CAPABILITIES = {
    "flash_attention_2": (8, 0),
    "flash_attention_3": (9, 0),
    "flex_attention": (7, 0),
}
"""The least compute capability of each attention implementation.

Sources: the README files of flash-attention 2 and 3, and of Triton, into which torch compiles
flex_attention.
"""


def capability_need(spec: JobSpec) -> CapabilityNeed | None:
    """Return the compute capability that the job needs; None if any GPU works, as far as is
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
