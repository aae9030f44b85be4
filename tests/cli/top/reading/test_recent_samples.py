from __future__ import annotations

from zerotools.cli.top.reading.recent_samples import RecentSamples
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource


def a_snapshot(*gpus: Gpu) -> Snapshot:
    return SnapshotSource(FakeProbe(gpus)).read()


def test_samples_are_at_the_end_and_what_is_gone_is_a_gap() -> None:
    samples = RecentSamples(4)
    gpu = "gpu.GPU-fake-0.memory_used_bytes"
    samples.add(a_snapshot(fake_gpu(0, used_gib=1)))
    assert samples.series()[gpu] == (None, None, None, float(1 << 30))
    samples.add(a_snapshot())
    assert samples.series()[gpu] == (None, None, float(1 << 30), None)
    for _ in range(3):
        samples.add(a_snapshot())
    assert gpu not in samples.series()
    assert len(samples.series()["host.memory_used_bytes"]) == 4


def test_a_gpu_that_cannot_be_read_has_no_series() -> None:
    samples = RecentSamples(2)
    samples.add(a_snapshot(Gpu(index=0, error="NVML: GPU is lost")))
    assert not any(name.startswith("gpu.") for name in samples.series())
