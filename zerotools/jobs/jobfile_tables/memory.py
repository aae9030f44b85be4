"""`[memory]`: the memory that a job declares, so that other jobs can run on the same GPUs and
host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.jobfile_tables.limits import LimitsSpec

_SIZE = 'bytes, or text such as `"10GiB"`'


@dataclass(frozen=True, kw_only=True)
class MemorySpec:
    """`[memory]`: the memory of the job. The daemon starts the job when this memory is free. Other
    jobs that declare their memory may run at the same time. See [share the GPUs of a
    machine](../how-to/share-gpus.md)."""

    per_gpu: int | str | None = key(
        f"Memory that the job needs on each of its GPUs, without the CUDA context: {_SIZE}. Other "
        "jobs with this key may run on the same GPUs. Not set: no other job runs on the job's "
        "GPUs.",
        default=None,
        stored_default=None,
    )
    host: int | str | None = key(
        f"Host memory that all processes of the job need together: {_SIZE}. The job starts when "
        "the running jobs leave this much of the memory for jobs (`limits.host_memory` of the "
        "daemon). If control groups are delegated to the daemon, the value is also the job's "
        "limit, unless `limits.memory` is higher.",
        default=None,
        stored_default=None,
    )

    @property
    def per_gpu_bytes(self) -> int | None:
        """The value of `per_gpu` in bytes; None if it is not set."""
        return None if self.per_gpu is None else bytes_of(self.per_gpu)

    @property
    def host_bytes(self) -> int:
        """The value of `host` in bytes; 0 if it is not set."""
        return 0 if self.host is None else bytes_of(self.host)


def check_memory(memory: MemorySpec, limits: LimitsSpec, device: str) -> Iterator[str]:
    """Yield the problems in `[memory]`, and the conflicts between `[memory]` and `[limits]`."""
    sizes = {}
    for name in ("per_gpu", "host"):
        value = getattr(memory, name)
        try:
            if value is not None:
                sizes[name] = bytes_of(value)
        except ValueError as error:
            yield f"memory.{name} = {format_value(value)}: {error}"
    if memory.per_gpu is not None and device == "cpu":
        yield (
            f"memory.per_gpu = {format_value(memory.per_gpu)}: cannot be used in a "
            'device = "cpu" job; leave it out'
        )
    try:
        most = None if limits.memory is None else bytes_of(limits.memory)
    except ValueError:
        return  # reported for `[limits]`
    if most is not None and sizes.get("host", 0) > most:
        yield (
            f"memory.host = {format_value(memory.host)}: must not be more than limits.memory = "
            f"{format_value(limits.memory)}, beyond which the kernel ends the job"
        )
