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
    """`[limits]`: the limits of all processes of the job together. It needs a control group (cgroup
    v2) for each job; without one, the job is refused. See [limit what a job may
    have](../how-to/limit-a-job.md)."""

    memory: int | str | None = key(
        f"Host memory, page cache of its files included: {_SIZE}. If it needs more, the kernel "
        "ends all its processes. Not set: `limits.job_memory` of the daemon.",
        default=None,
        stored_default=None,
    )
    memory_high: int | str | None = key(
        f"Above this its processes are slowed down, and their memory is taken back: {_SIZE}.",
        default=None,
        stored_default=None,
    )
    processes: int | None = key(
        "Processes and threads. Not set: `limits.job_processes` of the daemon.",
        default=None,
        stored_default=None,
        minimum=1,
        maximum=2**22,
    )
    io_weight: int | None = key(
        "Its weight for disk access; other jobs have 100.",
        default=None,
        stored_default=None,
        minimum=1,
        maximum=10000,
    )
    io_read: int | str | None = key(
        f"Read from each disk in a second: {_SIZE}.", default=None, stored_default=None
    )
    io_write: int | str | None = key(
        f"Written to each disk in a second: {_SIZE}.", default=None, stored_default=None
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
