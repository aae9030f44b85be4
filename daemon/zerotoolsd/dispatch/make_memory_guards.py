"""Makes the two loops that act before the memory of the host or of a shared GPU is used up.

`choose_low_memory_action` decides on the actions, and `end_jobs_for_memory` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable

from zerotools.core.counts_and_sizes import bytes_of
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.dispatch.end_jobs_for_memory import MemoryPreemption
from zerotoolsd.dispatch.gpu_memory_guard import GpuMemoryGuard, GpuPromises
from zerotoolsd.dispatch.host_memory_guard import HostMemoryGuard, Live
from zerotoolsd.dispatch.host_memory_reading import (
    HostMemoryReader,
    HostMemoryUse,
)
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement
from zerotoolsd.queue.tables.preemption_table import RELIEVE, RELIEVE_GPU
from zerotoolsd.resources.snapshot_thread import SnapshotCache


def memory_guards(
    *,
    config: Config,
    machine: SnapshotCache,
    live: Live,
    placement: QueuePlacement,
    host: HostMemoryReader,
    host_now: HostMemoryUse,
    asking: Callable[[str], MemoryPreemption],
    wake: Callable[[], None],
) -> tuple[HostMemoryGuard, GpuMemoryGuard]:
    """Create the object that watches the host memory and the object that watches the memory of
    GPUs.

    `live` returns the running attempts. `asking` takes one of the purposes in PURPOSES, and returns
    the object that asks jobs to save and end for this purpose.
    """
    return HostMemoryGuard(
        config.pressure,
        asking(RELIEVE),
        live,
        host_now.read,
        expected=placement.expected_of_running,
        wake=wake,
        read=host.read,
    ), GpuMemoryGuard(
        config.pressure,
        machine,
        asking(RELIEVE_GPU),
        live,
        GpuPromises(
            bytes_of(config.gpus.context_memory),
            placement.expected_of_gpu,
            config.limits.foreign_on,
        ),
        wake=wake,
    )
