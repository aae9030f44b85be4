from __future__ import annotations

from tests.daemon.http.api.fakes import FakeService
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Snapshot


def test_the_machine_is_a_snapshot_with_leases(service: FakeService, client: DaemonClient) -> None:
    service.leases = [{"gpu_uuid": "GPU-fake-0", "job_id": 1, "attempt": 1}]
    answer = client.machine()
    assert [gpu.uuid for gpu in Snapshot.from_json(answer["snapshot"]).gpus] == [
        "GPU-fake-0",
        "GPU-fake-1",
    ]
    assert answer["leases"] == service.leases


def test_the_past_comes_in_columns(client: DaemonClient) -> None:
    tree = client.history(600, 60)
    assert tree["times"] == [600, 660]
    assert tree["series"]["host.cpu_percent"] == {"mean": [0.5, None], "most": [1.0, None]}


def test_peaks_are_of_a_job_or_of_all(client: DaemonClient) -> None:
    assert [peak["job_id"] for peak in client.peaks(9)] == [9]
    (peak,) = client.peaks()
    assert (peak["job_id"], peak["uid"], peak["user"]) == (1, 7, None), "the user has no name here"
