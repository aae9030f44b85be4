from __future__ import annotations

import json

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.snapshot import Gpu, GpuProcess, Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource


def test_a_snapshot_survives_json() -> None:
    busy = fake_gpu(0, used_gib=9, processes=[GpuProcess(1, None), GpuProcess(2, 5)])
    snapshot = SnapshotSource(FakeProbe([busy, fake_gpu(1, error="lost")])).read()
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot


def test_a_newer_daemons_fields_are_left_out() -> None:
    tree = SnapshotSource(FakeProbe([fake_gpu(0)])).read().to_json()
    tree["weather"] = tree["gpus"][0]["colour"] = tree["host"]["mood"] = "grey"
    assert Snapshot.from_json(tree).gpus[0] == fake_gpu(0)


@pytest.mark.parametrize("tree", [{}, {"host": 3}, {"taken_at": 1.0, "host": {}}])
def test_what_is_no_snapshot_is_a_value_error(tree: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"Host|Snapshot"):
        Snapshot.from_json(tree)


def test_gpu_needs_an_index() -> None:
    with pytest.raises(ValueError, match="index"):
        Gpu.from_json({"uuid": "GPU-a"})


def test_the_source_passes_on_what_the_probe_says_and_closes_it() -> None:
    probe = FakeProbe([fake_gpu(0)], error="NVML did not answer within 2 s", age_seconds=7)
    with SnapshotSource(probe, HostSensor()) as source:
        snapshot = source.read()
    assert (snapshot.gpus_error, snapshot.gpus_age_seconds) == (probe.error, 7)
    assert probe.closed
