"""What is kept while jobs run, and what where the file cannot be written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.resources.test_check_gpu_use_of_jobs import attempt
from tests.daemon.waiting import wait_async
from zerotools.sensors.snapshot import Gpu, Pressure, Snapshot, Stall
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.config.config_tables import HistoryConfig
from zerotoolsd.monitoring import history_recorder
from zerotoolsd.monitoring.history_file import DAMAGED, FILE
from zerotoolsd.monitoring.history_recorder import (
    HistoryAnswer,
    HistoryClocks,
    HistoryRecorder,
    host_memory,
    series_of,
)
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.check_gpu_use_of_jobs import MeasuredUse
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.supervisor.procfs import Process

NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        yield opened


class Recorded:
    """A recorder whose clock is set by hand, in seconds after NOW."""

    def __init__(self, state: Path, store: Store, config: HistoryConfig | None = None) -> None:
        self.second, self.steady = 0.0, True
        self.recorder = HistoryRecorder(
            *(state, store, SnapshotCache(SnapshotSource(FakeProbe()))),
            config or HistoryConfig(),
            live=list,
            use=lambda snapshot: MeasuredUse(),
            clocks=HistoryClocks(
                lambda: NOW + self.second,
                lambda: NOW + (self.second if self.steady else 0.0),
                lambda: self.steady,
            ),
        )

    def take(self, seconds: Iterable[int]) -> None:
        for second in seconds:
            self.recorder.add(at(second))

    def write(self, second: float) -> str | None:
        self.second = second
        self.recorder.write()
        return self.recorder.trouble

    def read(self, second: float, seconds: float, points: int) -> HistoryAnswer:
        self.second = second
        return asyncio.run(self.recorder.read(seconds, points))

    def starts(self, second: float) -> list[float]:
        """Of the last minute, each second that is known."""
        return [bucket.start - NOW for bucket in self.read(second, 60, 1000).buckets]


@pytest.fixture
def it(tmp_path: Path, store: Store) -> Iterator[Recorded]:
    made = Recorded(tmp_path, store)
    yield made
    made.recorder.close()


def at(second: float) -> Snapshot:
    return replace(SnapshotSource(FakeProbe([fake_gpu(0)])).read(), taken_at=NOW + second)


def test_an_answer_has_what_is_written_and_what_is_not_yet(
    it: Recorded, tmp_path: Path, store: Store
) -> None:
    it.take(range(100))
    it.write(100)
    it.take(range(100, 119))

    tree = it.read(120, 120, 12).to_json()
    assert tree["step_seconds"] == 10
    assert tree["times"] == [int(NOW) + 10 * n for n in range(12)]
    assert tree["trouble"] is None
    assert tree["series"]["host.memory_used_bytes"]["most"][-1] > 0
    assert it.starts(119) == list(range(59, 119))
    it.recorder.close()
    again = Recorded(tmp_path, store)
    with closing(again.recorder):
        assert again.starts(119) == list(range(59, 119))


def test_an_attempt_that_ran_has_its_peak_also_where_the_daemon_was_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as it:
            spec = make_job("exit=0", name="brief")
            job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
            await it.reach(job.id, "succeeded")
            (peak,) = it.service.peaks(job.id, 10)
            assert (peak["name"], peak["attempt"], peak["uid"]) == ("brief", 1, 0)
            assert peak["ended"] == pytest.approx((await it.service.job(job.id)).ended)
            assert it.service.peaks(job.id + 1, 10) == []
        (tmp_path / "state" / FILE).unlink()
        async with running(tmp_path / "state") as it:

            async def known() -> bool:
                return [each["name"] for each in it.service.peaks(None, 10)] == ["brief"]

            await wait_async(known, "the peak of before")

    asyncio.run(story())


def test_a_running_job_is_measured(tmp_path: Path) -> None:
    config = replace(CONFIG, history=HistoryConfig(seconds=0.1))

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            spec = make_job("release exit=0", name="held")
            job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
            await it.reach(job.id, "running")

            async def measured() -> bool:
                tree = await it.service.history(60, 100)
                return f"job.{job.id}.host_memory_bytes" in tree["series"]

            await wait_async(measured, "the memory of the job")
            (peak,) = it.service.peaks(job.id, 10)
            assert peak["host_bytes"] > 0
            assert peak["name"] == "held"
            it.release(job.id)

    asyncio.run(story())


def test_a_file_that_breaks_meanwhile_is_set_aside_and_begun_anew(
    it: Recorded, tmp_path: Path
) -> None:
    it.take(range(600))
    it.write(600)
    it.recorder.close()
    it.take([601])
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + b"\1" * 8192)
    assert it.write(602) is None
    assert (tmp_path / DAMAGED).exists()
    assert it.starts(602) == [601]


def test_where_it_cannot_be_written_that_is_said_once_and_the_samples_wait(
    it: Recorded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    it.take([0])
    why = it.write(0)
    assert it.write(0) == why
    assert caplog.text.count("the history cannot be read or written") == 1
    answer = it.read(1, 60, 10)
    assert (answer.buckets, answer.trouble) == ([], why)
    (tmp_path / FILE).rmdir()
    assert it.write(2) is None
    assert it.starts(3) == [0]


def test_a_clock_that_nothing_confirms_removes_no_samples(it: Recorded) -> None:
    it.take(range(100))
    it.write(100)
    it.steady = False
    for second in (900 * 86400, -900 * 86400):
        it.write(second)
    assert len(it.read(100, 100, 100).buckets) == 100


def test_what_waits_is_bounded(it: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_recorder, "_MOST_WAITING", 5)
    it.take(range(9))
    assert it.starts(9) == [4, 5, 6, 7, 8]


def test_one_that_is_switched_off_makes_no_file(tmp_path: Path, store: Store) -> None:
    it = Recorded(tmp_path, store, HistoryConfig(enabled=False))
    asyncio.run(it.recorder.run_forever())
    assert it.read(0, 60, 10).trouble == "[history] enabled = false"
    assert it.recorder.peaks(None, 10) == []
    it.recorder.close()
    assert not (tmp_path / FILE).exists()


def test_a_queue_that_was_replaced_is_read_from_where_it_is(it: Recorded, tmp_path: Path) -> None:
    it.write(0)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("INSERT OR REPLACE INTO mark VALUES ('seen', 999999)")
    assert it.write(1) is None


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


TABLE = {
    pid: Process(pid=pid, parent=parent, state="S", start_ticks=10 * pid, rss_bytes=2**pid)
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 11), (20, 1), (21, 20), (30, 1))
}


def test_each_attempt_has_all_below_its_keeper_and_not_its_supervisor(tmp_path: Path) -> None:
    ours = [attempt(tmp_path / "7", 7, 11, 10), attempt(tmp_path / "8", 8, 21, 20)]
    found = host_memory(ours, lambda: TABLE)
    assert found == {(7, 1): 2**12 + 2**13, (8, 1): 0}


def test_a_pid_that_was_taken_over_is_nobodys(tmp_path: Path) -> None:
    ours = [attempt(tmp_path / "7", 7, 11, 10)]
    taken = {**TABLE, **{pid: TABLE[pid]._replace(start_ticks=5) for pid in (10, 11)}}
    assert host_memory(ours, lambda: taken) == {}


def test_without_attempts_nobody_looks_at_all_processes() -> None:
    def read() -> dict[int, Process]:
        raise AssertionError("it looked")

    assert host_memory([], read) == {}
