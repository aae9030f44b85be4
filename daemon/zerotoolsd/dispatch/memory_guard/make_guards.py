"""Makes the guards of the host's memory and of the GPUs' memory from the parts of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.core.counts import bytes_of
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher
from zerotoolsd.attempts.stop_attempts import AttemptStopper
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.dispatch.host_memory_use import HostMemoryUse
from zerotoolsd.dispatch.memory_guard.gpu_guard import GpuPressureGuard, GpuPromises
from zerotoolsd.dispatch.memory_guard.host_guard import PressureGuard
from zerotoolsd.dispatch.memory_guard.host_reading import HostMemoryReader
from zerotoolsd.dispatch.preemption.preempt_for_memory import MemoryPreemption
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import RELIEVE, RELIEVE_GPU
from zerotoolsd.resources.machine_snapshot import SnapshotCache

Live = Callable[[], Sequence[AttemptRow]]


def memory_guards(
    *,
    store: Store,
    config: Config,
    parking: JobGuard,
    machine: SnapshotCache,
    live: Live,
    placement: QueuePlacement,
    host: HostMemoryReader,
    host_now: HostMemoryUse,
    stopping: AttemptStopper,
    watcher: AttemptWatcher,
    wake: Callable[[], None],
) -> tuple[PressureGuard, GpuPressureGuard]:
    """Return both guards, over the attempts of `live`."""

    def asking(purpose: str) -> MemoryPreemption:
        return MemoryPreemption(
            store, parking.guard, stopping.give_way, watcher.end_at_once, purpose
        )

    return PressureGuard(
        config.pressure,
        asking(RELIEVE),
        live,
        host_now.read,
        expected=placement.expected_of_running,
        wake=wake,
        read=host.read,
    ), GpuPressureGuard(
        config.pressure,
        store,
        machine,
        asking(RELIEVE_GPU),
        live,
        GpuPromises(bytes_of(config.gpus.context_memory), placement.expected_of_gpu),
        config.limits.foreign_on,
        wake=wake,
    )
