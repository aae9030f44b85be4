"""A long queue is worked out once: what changed since is all that is read."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.daemons import make_job
from zerotoolsd.config import LimitsConfig
from zerotoolsd.queue.parking import JobGuard
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store


class ReadingStore(Store):
    """Which jobs were read."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.read: list[int] = []

    def job(self, job_id: int) -> JobRow:
        self.read.append(job_id)
        return super().job(job_id)


def queue_one(store: Store, uid: int = 0) -> JobRow:
    job, _ = store.submit(
        uid=uid,
        name="fake",
        spec=make_job("exit=0"),
        output_dir=None,
        default_output=Path("/nowhere"),
        idempotency_key=None,
        now=1.0,
    )
    return job


def test_each_job_is_read_once(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    guard = JobGuard(tmp_path / "jobs", lambda job_id, why: None, lambda job_id, doing: None)
    placement = QueuePlacement(store, guard, LimitsConfig(cpu_ranks=3))
    ids = [queue_one(store).id for _ in range(5)]
    store.read.clear()
    for _ in range(2):
        requests = placement.requests_of(store.ids("queued"))
        assert [request.job_id for request in requests] == ids
        decisions = placement.decide(requests, None)
        assert [start.job_id for start in decisions.starts] == [1]
        assert decisions.waits[5] == "needs 2 CPU ranks: waits behind job 2"
    assert store.read == ids
    placement.expect(queue_one(store))
    store.read.clear()
    assert len(placement.requests_of(store.ids("queued"))) == 6
    assert store.read == []
    store.close()
