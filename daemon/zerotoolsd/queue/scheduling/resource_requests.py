"""The requests of queued jobs for resources, and the compute capability that a job needs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityNeed:
    """The least compute capability that a job needs.

    `what` is the setting that needs this capability. `instead` is advice to use a setting that
    needs less.
    """

    least: tuple[int, int]
    what: str
    instead: str


DECLARED = "memory.host"
"""Value of `host_from` for a job that declares its host memory itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeed:
    """The resources that a job needs. For the scheduler, jobs with the same need differ only in
    their age and duration.

    Attributes:
        world_size: the number of ranks.
        gpus: a number of GPUs, or the indices and UUIDs of the GPUs to choose from, or None for
            ranks on CPUs.
        gpu_bytes: the memory that the job uses on each GPU; None: whole GPUs.
        host_bytes, host_from: the host memory, and the setting that this number is taken from.
        host_advice: a setting with which the job needs less host memory.
        least_gpu_bytes: a GPU with less memory than this is used only if there are not enough
            larger GPUs.
        sizes: the numbers of ranks with which an elastic job may start, ascending. The first of
            them is `world_size`; the job waits only until it can start with that number.
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
        """Return the largest number of ranks, among the sizes of the job, that is at most
        `most`; None if all sizes are larger.
        """
        fits = [size for size in self.sizes or (self.world_size,) if size <= most]
        return fits[-1] if fits else None

    @property
    def is_elastic(self) -> bool:
        """Return whether the job can run with several numbers of ranks."""
        return len(self.sizes) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The request of a queued job for resources.

    The job holds the resources for at most `lasts` seconds; None: unknown. Jobs with a higher
    `priority` start first.
    """

    job_id: int
    need: ResourceNeed
    lasts: float | None = None
    priority: int = 0
    uid: int = 0

    @property
    def user_order(self) -> int:
        """Return a sort key of one user's waiting jobs: higher priority first, then older jobs."""
        return self.job_id - self.priority * _IDS


_IDS = 2**53
"""A number larger than the number of any job."""
_RANKS = 2**32
"""A number larger than the rank of any user."""


def order_of(user_order: int, rank: int) -> int:
    """Return a number by which the waiting jobs of all users are sorted, ascending.

    The order depends on the priority, then on the rank of the user (`fair_share`; the smaller rank
    comes first), then on the age of the job. `job_of` accepts this number, too.
    """
    return ((user_order // _IDS) * _RANKS + rank) * _IDS + user_order % _IDS


def user_order_limit(user_order: int, rank: int, own_rank: int) -> int:
    """Return the limit below which the `user_order` of one user's jobs must be, so that these jobs
    start before a certain job of another user.

    `rank` is the fair-share rank of the one user. `user_order` and `own_rank` belong to the other
    user's job.
    """
    if rank == own_rank:
        return user_order
    return (user_order // _IDS + (rank < own_rank)) * _IDS


def job_of(user_order: int) -> int:
    """Return the number of the job with this `user_order`."""
    return user_order % _IDS


def priority_of(user_order: int) -> int:
    """Return the priority of the job with this `user_order`."""
    return -(user_order // _IDS)


def request_at(user_order: int, need: ResourceNeed, lasts: float | None, uid: int = 0) -> Request:
    """Return the request of a job. `lasts` is the longest duration of the job in seconds."""
    return Request(
        job_id=user_order % _IDS, need=need, lasts=lasts, priority=priority_of(user_order), uid=uid
    )


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
    """Return the compute capability that the job is known to need; None if no need is known."""
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
