"""Fences of GPUs: which GPUs get one, and how long no job gets them."""

from __future__ import annotations

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.made_attempts import an_attempt_row
from zerotools.sensors.snapshot import Host, Snapshot
from zerotools.sensors.xids import GpuXid
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.gpu_fault_fences import fences_of, with_fences

XIDS = {"GPU-fake-0": [GpuXid(31, 5.0)], "GPU-fake-1": [GpuXid(79, 5.0), GpuXid(79, 6.0)]}
HOST = Host(1, 1, 0, 0, 0, 1, (0.0, 0.0, 0.0))
SNAPSHOT = Snapshot(0.0, HOST, (fake_gpu(0), fake_gpu(1)))


def test_a_broken_gpu_is_fenced_until_its_time_or_the_next_boot() -> None:
    (fence,) = fences_of(an_attempt_row(2, boot_id="this"), XIDS, now=100.0, seconds=50.0)
    assert (fence.gpu_uuid, fence.attempt, fence.until) == ("GPU-fake-1", 2, 150.0)
    errors = [gpu.error for gpu in with_fences(SNAPSHOT, [fence], Moment(120.0, 1, "this")).gpus]
    assert errors[0] is None
    assert "the driver reported XID 79 (the GPU has fallen off the bus) in job" in str(errors[1])
    for over in (Moment(150.0, 1, "this"), Moment(120.0, 1, "next")):
        assert with_fences(SNAPSHOT, [fence], over) == SNAPSHOT
