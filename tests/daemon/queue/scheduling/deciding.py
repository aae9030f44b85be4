"""What tests of a pass ask for, and what it decides: requests, machines and leases by few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.fake_gpu_probe import fake_gpu
from zerotools.sensors.snapshot import Gpu, Host, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import CapabilityNeed, Request, ResourceNeed
from zerotoolsd.queue.scheduling.scheduler import PassDecisions, run_pass, touch_nothing

HOST = Host(
    memory_total_bytes=2**34,
    memory_available_bytes=2**33,
    memory_used_bytes=2**33,
    swap_total_bytes=0,
    swap_used_bytes=0,
    cpu_count=2,
    load_average=(0.0, 0.0, 0.0),
)
LIMITS = LimitsConfig(cpu_ranks=8)


def seen(*gpus: Gpu, error: str | None = None, taken_at: float = 100.0) -> Snapshot:
    return Snapshot(taken_at=taken_at, host=HOST, gpus=gpus, gpus_error=error, gpus_age_seconds=0)


def gpus(count: int) -> Snapshot:
    return seen(*(fake_gpu(index, used_gib=0) for index in range(count)))


def wants(job_id: int, gpus: int | tuple[int | str, ...] | None) -> Request:
    size = gpus if isinstance(gpus, int) else len(gpus or ())
    return Request(job_id=job_id, need=ResourceNeed(world_size=size, gpus=gpus))


def cpu(job_id: int, ranks: int) -> Request:
    return Request(job_id=job_id, need=ResourceNeed(world_size=ranks, gpus=None))


def lease(index: int, job_id: int = 9, held_by: str | None = None) -> Lease:
    return Lease(gpu_uuid=f"GPU-fake-{index}", job_id=job_id, attempt=1, held_by=held_by)


def decide(
    requests: Sequence[Request],
    snapshot: Snapshot | None = None,
    *,
    touch: Callable[[int], None] = touch_nothing,
    **changes: Any,
) -> PassDecisions:
    values: dict[str, Any] = {"now": 100.0, "leases": (), "cpu_ranks_used": 0, "limits": LIMITS}
    return run_pass(
        PendingQueue(requests), PassInput(snapshot=snapshot, **{**values, **changes}), touch
    )


def started(decisions: PassDecisions) -> dict[int, list[int]]:
    return {
        start.job_id: [int(uuid.rpartition("-")[2]) for uuid in start.gpu_uuids]
        for start in decisions.starts
    }


BF16 = CapabilityNeed(least=(8, 0), what='train.precision = "bf16"', instead="set fp16")
