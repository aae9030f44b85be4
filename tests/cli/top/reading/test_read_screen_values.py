from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from harness.patience import patient
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from tests.daemon.http.api.serving import serving
from zerotools.cli.top.reading.disk_reader import DiskReader
from zerotools.cli.top.reading.read_screen_values import RecentSamples, ScreenReader
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client import daemon_address
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Gpu, GpuProcess, Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource


def source(count: int = 1) -> SnapshotSource:
    gpus = [fake_gpu(n, used_gib=30, processes=[GpuProcess(1, 30 << 30)]) for n in range(count)]
    return SnapshotSource(FakeProbe(gpus))


@pytest.fixture
def places() -> Iterator[DiskReader]:
    looker = DiskReader(deadline_seconds=patient(5))
    yield looker
    looker.close()


def test_one_reading(
    service: FakeService, client: DaemonClient, places: DiskReader, tmp_path: Path
) -> None:
    attempts = (an_attempt(),)
    service.views[3] = a_view(
        3, a_job(), state="running", attempts=attempts, progress=STEP, output_dir=str(tmp_path)
    )
    service.leases = [{"gpu_uuid": "GPU-fake-0", "job_id": 3, "attempt": 1, "uid": 0}]
    service.write(3, "rank-0.log", b"a line\n")
    look = ScreenReader(source(), client, places).read(3)
    assert (look.trouble, [job["id"] for job in look.jobs]) == ("", [3])
    assert look.leases["GPU-fake-0"]["id"] == 3
    assert look.chosen is not None
    assert look.chosen.log == ("a line",)
    assert len(look.disks) == 1
    assert tmp_path.is_relative_to(look.disks[0].at)
    assert look.is_hour
    assert len(look.past["host.cpu_percent"]) == 60
    assert [share.kind for share in look.shares[0]] == ["job"]


def test_a_daemon_that_dies_leaves_its_jobs_on_the_screen_and_comes_back(
    service: FakeService, tmp_path: Path
) -> None:
    now = [0.0]
    service.views[3] = a_view(3, a_job(), state="running", attempts=(an_attempt(),))
    path = tmp_path / "run" / "api.sock"
    client = DaemonClient(path, timeout_seconds=patient(5))
    looking = ScreenReader(source(), client, clock=lambda: now[0])
    with serving(service, path):
        assert looking.read(3).trouble == ""
    now[0] = 12.0
    alone = looking.read(3)
    assert alone.trouble == f"no daemon answers at {path}"
    assert (len(alone.jobs), alone.jobs_age_seconds) == (1, 12.0)
    assert alone.chosen is not None
    service.change(3, state="paused")
    with serving(service, path):
        again = looking.read(3)
    assert (again.trouble, again.jobs_age_seconds) == ("", 0.0)
    assert again.jobs[0]["state"] == "paused"


def test_without_a_daemon_the_machine_is_there(tmp_path: Path) -> None:
    client = DaemonClient(tmp_path / "no.sock", timeout_seconds=1)
    look = ScreenReader(source(8), client).read(None)
    assert look.trouble.startswith("no daemon answers")
    assert (len(look.snapshot.gpus), look.jobs, look.disks) == (8, (), ())


def test_another_machine_is_what_its_daemon_sees(
    service: FakeService, client: DaemonClient, tmp_path: Path
) -> None:
    there = daemon_address.RemoteMachine("gpu1", "/run/api.sock", "/home/ada", 1000, {})
    daemon_address.record_forwarding(client.socket, there)
    try:
        looking = ScreenReader(source(3), client, DiskReader())
        look = looking.read(None)
        assert look.machine == "gpu1"
        assert [gpu.uuid for gpu in look.snapshot.gpus] == ["GPU-fake-0", "GPU-fake-1"]
        assert look.disks == ()
    finally:
        daemon_address.forget_forwarding(client.socket)
    gone = tmp_path / "no.sock"
    daemon_address.record_forwarding(gone, there)
    try:
        with pytest.raises(DaemonUnreachable):
            ScreenReader(source(), DaemonClient(gone, timeout_seconds=1)).read(None)
    finally:
        daemon_address.forget_forwarding(gone)


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
