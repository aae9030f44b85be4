from __future__ import annotations

from dataclasses import replace

from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import Gpu, Pressure, Stall
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.monitoring.history.series import series_of

GIB = 2**30


def test_gpus_host_and_jobs_by_name() -> None:
    lost = Gpu(index=1, error="NVML: GPU is lost")
    snapshot = SnapshotSource(FakeProbe([fake_gpu(0, used_gib=61.0), lost])).read()
    host = replace(snapshot.host, pressure=Pressure(memory=Stall(12.5, 3.0)), cpu_percent=None)
    found = series_of(
        replace(snapshot, host=host), {(3, 2): {"GPU-fake-0": 5 * GIB}}, {(3, 2): 7, (4, 1): 8}
    )
    assert found["gpu.GPU-fake-0.memory_used_bytes"] == 61 * GIB
    assert found["job.3.gpu.GPU-fake-0.memory_used_bytes"] == 5 * GIB
    assert (found["job.3.host_memory_bytes"], found["job.4.host_memory_bytes"]) == (7, 8)
    assert found["host.memory_stalled_percent"] == 12.5
    assert found["host.memory_used_bytes"] == host.memory_used_bytes
    assert "host.cpu_percent" not in found
    assert not any("None" in name or "GPU-fake-1" in name for name in found)


def test_what_a_silent_driver_said_before_is_not_taken_for_now() -> None:
    snapshot = SnapshotSource(FakeProbe([fake_gpu(0)])).read()
    assert [name for name in series_of(snapshot, {}, {}) if name.startswith("gpu.")]
    for is_silent in (True, False):  # False: NVML has failed, or the GPUs are not read
        old = replace(snapshot, gpus_error="not read", gpus_silent=is_silent)
        assert not [name for name in series_of(old, {}, {}) if name.startswith("gpu.")]
