"""`[limits]` of the job file: the host resources that a job may use at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

_SIZE = 'bytes, or text such as `"64GiB"`'


@dataclass(frozen=True, kw_only=True)
class LimitsSpec:
    """`[limits]`: the limits of all processes of the job together. The limits need a control group
    (cgroup v2) for each job. A daemon that cannot make control groups refuses the job. See [limit
    what a job may have](../how-to/limit-a-job.md).
    """

    memory: int | str | None = key(
        f"Host memory of the job, including the page cache of its files: {_SIZE}. If the job "
        "needs more, the kernel ends all its processes. Default: `limits.job_memory` of the "
        "daemon.",
        default=None,
        stored_default=None,
    )
    memory_high: int | str | None = key(
        "If the job uses more host memory than this, the kernel slows its processes and reclaims "
        f"memory: {_SIZE}.",
        default=None,
        stored_default=None,
    )
    processes: int | None = key(
        "Number of processes and threads. Default: `limits.job_processes` of the daemon.",
        default=None,
        stored_default=None,
        minimum=1,
        maximum=2**22,
    )
    io_weight: int | None = key(
        "The job's weight for disk access; the default of a job is 100.",
        default=None,
        stored_default=None,
        minimum=1,
        maximum=10000,
    )
    io_read: int | str | None = key(
        f"Amount read from each disk per second: {_SIZE}.", default=None, stored_default=None
    )
    io_write: int | str | None = key(
        f"Amount written to each disk per second: {_SIZE}.", default=None, stored_default=None
    )


SIZES = ("memory", "memory_high", "io_read", "io_write")


def check_limits(limits: LimitsSpec) -> Iterator[str]:
    """Yield the problems with `[limits]`."""
    sizes = {}
    for name in SIZES:
        value = getattr(limits, name)
        if value is None:
            continue
        try:
            sizes[name] = bytes_of(value)
        except ValueError as error:
            yield f"limits.{name} = {format_value(value)}: {error}"
    if "memory" in sizes and sizes.get("memory_high", 0) > sizes["memory"]:
        yield (
            f"limits.memory_high = {format_value(limits.memory_high)}: must not be more than "
            f"limits.memory = {format_value(limits.memory)}"
        )
