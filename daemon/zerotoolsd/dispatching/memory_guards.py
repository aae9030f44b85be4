"""Makes the guards of the host's memory and of the GPUs' memory from the parts of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerotools.core.counts import bytes_of
from zerotoolsd.attempts.watcher import Watcher
from zerotoolsd.config import Config
from zerotoolsd.dispatching.host_memory_now import HostMemoryNow
from zerotoolsd.dispatching.stop_asking import StopAsking
from zerotoolsd.machine import SnapshotCache
from zerotoolsd.pressure.gpu_guard import GpuPressureGuard, GpuPromises
from zerotoolsd.pressure.guard import PressureGuard
from zerotoolsd.pressure.host_reading import HostMemoryReader
from zerotoolsd.pressure.room_asking import RoomAsking
from zerotoolsd.queue.parking import JobGuard
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.yielding.yield_table import RELIEVE, RELIEVE_GPU

Live = Callable[[], Sequence[AttemptRow]]


def memory_guards(
    store: Store,
    config: Config,
    parking: JobGuard,
    machine: SnapshotCache,
    live: Live,
    placement: QueuePlacement,
    host: HostMemoryReader,
    host_now: HostMemoryNow,
    stopping: StopAsking,
    watcher: Watcher,
    wake: Callable[[], None],
) -> tuple[PressureGuard, GpuPressureGuard]:
    """Return both guards, over the attempts of `live`."""

    def asking(purpose: str) -> RoomAsking:
        return RoomAsking(store, parking.guard, stopping.give_way, watcher.end_at_once, purpose)

    return PressureGuard(
        *(config.pressure, asking(RELIEVE), live, host_now.read),
        expected=placement.expected_of_running,
        wake=wake,
        read=host.read,
    ), GpuPressureGuard(
        *(config.pressure, store, machine, asking(RELIEVE_GPU), live),
        GpuPromises(bytes_of(config.gpus.context_memory), placement.expected_of_gpu),
        config.limits.foreign_on,
        wake=wake,
    )
