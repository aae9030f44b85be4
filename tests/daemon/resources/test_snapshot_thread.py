"""A driver that does not answer delays nobody who does not need it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from tests.daemon.waiting import wait_async
from zerotools.jobs.doctor.gpus import check_gpus
from zerotools.sensors.excluded_and_preferred_gpus import GpuChoice
from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.run_nvml_probe import GpuReading
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.dispatch import scheduling_loop
from zerotoolsd.resources import snapshot_thread
from zerotoolsd.resources.snapshot_thread import SnapshotCache


class SilentProbe(FakeProbe):
    """One GPU, of which nothing is told before `answers` is set."""

    def __init__(self) -> None:
        super().__init__([fake_gpu(0)])
        self.answers = threading.Event()

    def read(self) -> GpuReading:
        self.answers.wait(20)
        return super().read()


def test_jobs_on_cpus_run_while_the_driver_hangs_and_those_on_gpus_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_thread, "PATIENCE_SECONDS", 0.01)
    probe = SilentProbe()

    async def story() -> None:
        async with running(tmp_path / "state", probe) as it:
            gpu_job = make_job("exit=0", device="cuda", ranks=None, gpus=1)
            # Whether there is a GPU shows later: the job is not refused.
            one, _ = await it.service.submit(gpu_job, uid=0, idempotency_key=None)
            two, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(two.id, "succeeded")

            async def waits() -> bool:
                why = it.engine.waits.get(one.id) or ""
                return "the NVIDIA driver has not answered for " in why

            await wait_async(waits, "the reason")
            seen = (await it.service.machine())["snapshot"]
            assert (seen["gpus"], seen["gpus_silent"]) == ((), True)
            assert seen["host"]["memory_total_bytes"] > 0
            probe.answers.set()
            await it.reach(one.id, "succeeded")

    asyncio.run(story())


class LateProbe(FakeProbe):
    """Each answer comes when nobody waits for it any more."""

    def __init__(self) -> None:
        super().__init__([fake_gpu(0)])
        self.given_up = threading.Event()

    def read(self) -> GpuReading:
        self.given_up.wait(20)
        self.given_up.clear()
        return super().read()


def test_a_driver_that_is_always_slow_starves_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_thread, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(scheduling_loop, "GPU_PATIENCE_SECONDS", 0.01)
    probe, without = LateProbe(), SnapshotCache._without_answer

    def give_up(cache: SnapshotCache) -> Snapshot:
        probe.given_up.set()
        return without(cache)

    monkeypatch.setattr(SnapshotCache, "_without_answer", give_up)

    async def story() -> None:
        async with running(tmp_path / "state", probe) as it:
            for _ in range(2):
                gpu_job = make_job("exit=0", device="cuda", ranks=None, gpus=1)
                job, _ = await it.service.submit(gpu_job, uid=0, idempotency_key=None)
                await it.reach(job.id, "succeeded")
            probe.given_up.set()

    asyncio.run(story())


def test_the_owner_s_choice_is_in_every_snapshot_and_an_odd_entry_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choice, now = GpuChoice(exclude=(1, "GPU-gone"), prefer=(0,)), [100.0]
    probe, host = FakeProbe([fake_gpu(0), fake_gpu(1)]), HostSensor().read()
    cache = SnapshotCache(SnapshotSource(probe), lambda: host, lambda: now[0], choice)

    async def story() -> None:
        for _ in range(3):
            now[0] += 10
            first, second = (await cache.snapshot()).gpus
            assert (first.excluded, first.preference) == (False, 0)
            assert (second.excluded, second.preference) == (True, None)

    asyncio.run(story())
    assert caplog.text.count('gpus.exclude: "GPU-gone" matches no GPU') == 1


def test_how_long_it_has_been_silent_and_the_last_gpus_that_were_seen() -> None:
    now, host = [100.0], HostSensor().read()
    probe = FakeProbe([fake_gpu(0)])
    cache = SnapshotCache(SnapshotSource(probe), lambda: host, lambda: now[0])

    async def story() -> None:
        assert (await cache.snapshot()).gpus_error is None
        now[0] += 10
        probe.is_silent, probe.error = True, "NVML did not answer within 2 s"
        first = await cache.snapshot()
        assert first.gpus_error == (
            "the NVIDIA driver has not answered for 0 s (NVML did not answer within 2 s)"
        )
        now[0] += 40
        await cache.snapshot()
        again = await cache.snapshot()
        assert str(again.gpus_error).startswith("the NVIDIA driver has not answered for 40 s")
        assert [gpu.index for gpu in again.gpus] == [0]
        probe.is_silent, probe.error = False, None

        async def answered() -> bool:
            now[0] += 2
            return (await cache.snapshot()).gpus_error is None

        await wait_async(answered, "the driver to answer")

    asyncio.run(story())
    cache.close()


def test_gpus_that_are_let_go_of_are_not_read_and_stay_known() -> None:
    """An administrator can reset them: the driver refuses that while a probe has them open."""

    class ClosedProbe(FakeProbe):
        reads = closes = 0

        def read(self) -> GpuReading:
            self.reads += 1
            return super().read()

        def close(self) -> None:
            self.closes += 1

    now, host, probe = [100.0], HostSensor().read(), ClosedProbe([fake_gpu(0)])
    cache = SnapshotCache(SnapshotSource(probe), lambda: host, lambda: now[0])

    async def story() -> None:
        cache.lets_go = lambda: True  # a daemon that starts drained reads them once
        assert (await cache.snapshot()).gpus_error is None
        now[0] += 10
        found = await cache.snapshot()
        assert (found.gpus_error, found.gpus_silent) == (snapshot_thread.LET_GO, False)
        assert ([gpu.index for gpu in found.gpus], found.gpus_age_seconds) == ([0], 10.0)
        assert (probe.reads, probe.closes) == (1, 1)
        cache.lets_go = lambda: False
        now[0] += 10
        assert (await cache.snapshot()).gpus_error is None

    asyncio.run(story())


def test_doctor_tells_a_silent_driver_from_none() -> None:
    host = HostSensor().read()
    silent = Snapshot(1.0, host, gpus_error="the NVIDIA driver has not answered", gpus_silent=True)
    (found,) = check_gpus(silent)
    assert (found.level, "Xid" in str(found.do)) == ("problem", True)
    (found,) = check_gpus(Snapshot(1.0, host, gpus_error="no NVML: no driver"))
    assert found.level == "warning"
