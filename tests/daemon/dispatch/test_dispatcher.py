"""The engine with GPUs: leases, waiting, losing sight of them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatch.test_forecast_memory_exhaustion import GIB, TOTAL
from tests.daemon.dispatchers import CONFIG, Running, leave_attempt, running
from tests.daemon.made_attempts import own_token
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts import prepare_run_directory
from zerotoolsd.config.config_tables import LimitsConfig, PressureConfig, RetryConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.dispatch.host_memory_guard import HostMemoryGuard, HostReading
from zerotoolsd.interface.api_types import Conflict, JobView
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.scheduling.memory_left_for_jobs import HostMemoryNow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.stop.kill_descendants import left_behind


def gpu_job(fake: str, gpus: int | list[int | str] = 1) -> JobSpec:
    return make_job(fake, device="cuda", gpus=gpus, ranks=None)


def gpus(count: int) -> FakeProbe:
    return FakeProbe([fake_gpu(index, used_gib=0) for index in range(count)])


def test_a_gpu_job_leases_its_gpus_and_the_next_one_waits_for_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", gpus(2)) as it:
            one, _ = await it.service.submit(gpu_job("release", 2), uid=0, idempotency_key=None)
            await it.reach(one.id, "running")
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            assert await it.waits(two.id) == ("needs 1 GPU: 0 of 2 free: GPUs 0-1: job 1")
            leases = (await it.service.machine())["leases"]
            assert [lease["gpu_uuid"] for lease in leases] == ["GPU-fake-0", "GPU-fake-1"]
            it.release(one.id)
            assert (await it.reach(two.id, "succeeded")).attempts[0].gpu_uuids == ("GPU-fake-0",)
            assert (await it.service.machine())["leases"] == []

    asyncio.run(story())


def test_a_gpu_that_broke_is_fenced_and_the_job_goes_on_elsewhere(tmp_path: Path) -> None:
    config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))

    async def story() -> None:
        async with running(tmp_path / "state", gpus(2), config=config) as it:
            job, _ = await it.service.submit(
                gpu_job("attempt=1:exit=1 exit=0"), uid=0, idempotency_key=None
            )
            broken = GpuXid(79, time.monotonic() + 60)  # after whatever the attempt began
            it.probe.gpus = (fake_gpu(0, used_gib=0, xids=[broken]), fake_gpu(1, used_gib=0))
            first, second = (await it.reach(job.id, "succeeded", "failed")).attempts
            assert (first.gpu_uuids, second.gpu_uuids) == (("GPU-fake-0",), ("GPU-fake-1",))
            assert (first.cause_kind, second.cause_kind) == ("gpu_fault", None)
            assert "reported XID 79 (the GPU has fallen off the bus) of GPU 0" in str(first.cause)
            (waited,) = [e for e in await it.service.events(0, 0) if e.kind == "crashed"]
            assert "not counted as one of its" in str(waited.why)
            seen = (await it.service.machine())["snapshot"]["gpus"]
            assert "no job gets it until" in seen[0]["error"]
            assert seen[1]["error"] is None
            both, _ = await it.service.submit(gpu_job("exit=0", 2), uid=0, idempotency_key=None)
            assert "GPU 0: cannot be relied on (no job gets it" in await it.waits(both.id)

    asyncio.run(story())


def test_the_ranks_see_the_uuids_of_their_gpus(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", gpus(3)) as it:
            job, _ = await it.service.submit(gpu_job("env", [2]), uid=0, idempotency_key=None)
            await it.reach(job.id, "succeeded")
            log = it.service.run_dir(job.id, 1) / "rank-0.log"
            env = json.loads(log.read_text())
            assert env["CUDA_VISIBLE_DEVICES"] == "GPU-fake-2"
            assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            assert env["HF_HUB_OFFLINE"] == "1"
            assert "ZEROTOOLS_TOKEN" in env
            assert "PYTHONPATH" not in env

    asyncio.run(story())


def test_p7_losing_nvml_stops_new_gpu_jobs_and_no_running_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", gpus(2)) as it:
            one, _ = await it.service.submit(gpu_job("release"), uid=0, idempotency_key=None)
            await it.reach(one.id, "running")
            it.probe.error = "NVML does not answer"
            await it.engine.machine.snapshot(most_age_seconds=0)
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            assert (await it.waits(two.id)).endswith("NVML does not answer")
            cpu, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(cpu.id, "succeeded")
            assert (await it.service.job(one.id)).state == "running"
            it.release(one.id)
            await it.reach(one.id, "succeeded")
            it.probe.error = None
            await it.reach(two.id, "succeeded")

    asyncio.run(story())


def test_leases_outlive_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", gpus(1), leave=True) as it:
            job, _ = await it.service.submit(gpu_job("release"), uid=0, idempotency_key=None)
            await it.reach(job.id, "running")

    async def next_story() -> None:
        async with running(tmp_path / "state", gpus(1)) as it:
            assert [lease.job_id for lease in it.engine.store.leases()] == [1]
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            assert "GPU 0: job 1" in await it.waits(two.id)

    asyncio.run(story())
    asyncio.run(next_story())


def leave_ended_attempt(state: Path, record: dict[str, Any]) -> None:
    """A running job of an earlier daemon, whose supervisor has written `record` since."""
    run = leave_attempt(state, gpu_job(""), gpu_uuids=("GPU-fake-0",))
    write_json(run / "exit.json", {"token": own_token(), **record})


def test_p5_a_process_that_cannot_be_ended_fences_its_gpu(tmp_path: Path) -> None:
    async def story() -> None:
        stuck = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        identity = read_process(stuck.pid)
        assert identity is not None
        line = {**left_behind(identity, rank=0), "state": "D", "place": "nfs_wait"}
        record = {"outcome": "bad_job", "cause": "it broke", "unkillable": [line]}
        leave_ended_attempt(tmp_path / "state", record)
        async with running(tmp_path / "state", gpus(1)) as it:
            assert (await it.reach(1, "failed")).reason == (
                f"it broke; pid {stuck.pid} (cat) of rank 0, in state D (nfs_wait) does not end: "
                "GPU 0 stays reserved until this process ends"
            )
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            assert f"GPU 0: in use by pid {stuck.pid} (cat)" in await it.waits(two.id)
        async with running(tmp_path / "state", gpus(1)) as it:
            assert f"GPU 0: in use by pid {stuck.pid} (cat)" in await it.waits(two.id)
            stuck.kill()
            await stuck.wait()
            await it.reach(two.id, "succeeded")

    asyncio.run(story())


def test_a_job_does_not_start_beside_what_nobody_may_end(tmp_path: Path) -> None:
    async def story() -> None:
        stuck = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        identity = read_process(stuck.pid)
        assert identity is not None
        line = {**left_behind(identity, refused=True), "uid": 61234}
        record = {"outcome": "crashed", "cause": "it broke", "unkillable": [line]}
        run = leave_attempt(tmp_path / "state", make_job("exit=0"))
        write_json(run / "exit.json", {"token": own_token(), **record})
        config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))
        for _ in range(2):  # also after a restart
            async with running(tmp_path / "state", config=config) as it:
                assert await it.waits(1) == (
                    f"waits for leftover processes of its last attempt: pid {stuck.pid} "
                    "(cat), of uid 61234; zerotoolsd has no right to end them"
                )
        async with running(tmp_path / "state", config=config) as it:
            stuck.kill()
            await stuck.wait()
            await it.reach(1, "succeeded")

    asyncio.run(story())


def test_a_process_of_an_earlier_boot_holds_no_gpu(tmp_path: Path) -> None:
    me = read_process(os.getpid())
    assert me is not None
    unkillable = [{"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": "another"}]
    record = {"outcome": "bad_job", "cause": "it broke", "unkillable": unkillable}
    leave_ended_attempt(tmp_path / "state", record)

    async def story() -> None:
        async with running(tmp_path / "state", gpus(1)) as it:
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(two.id, "succeeded")

    asyncio.run(story())


def test_a_helper_that_hangs_holds_no_gpu(tmp_path: Path) -> None:
    async def story() -> None:
        stuck = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        rank = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        helper, other = read_process(stuck.pid), read_process(rank.pid)
        assert helper is not None
        assert other is not None
        lines = [{**left_behind(helper), "helper": True}, left_behind(other, rank=0)]
        record = {"outcome": "bad_job", "cause": "it broke", "unkillable": lines}
        leave_ended_attempt(tmp_path / "state", record)
        async with running(tmp_path / "state", gpus(1)) as it:
            two, _ = await it.service.submit(gpu_job("exit=0"), uid=0, idempotency_key=None)
            assert f"GPU 0: in use by pid {rank.pid} (cat) of rank 0" in await it.waits(two.id)
            rank.kill()
            await rank.wait()
            await it.reach(two.id, "succeeded")
        stuck.kill()
        await stuck.wait()

    asyncio.run(story())


def test_a_time_limit_does_not_run_while_the_machine_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor was started and found no room to begin: it is running, and nothing runs."""
    prepare, tries = prepare_run_directory.prepare_run_directory, list[int]()

    def full(*told: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return prepare(*told, **named)

    monkeypatch.setattr(prepare_run_directory, "prepare_run_directory", full)
    spec = make_job("release exit=0", ranks=1, time_limit=30)
    write_json(leave_attempt(tmp_path / "state", spec) / "attempt.json", {})
    store, before = Store(tmp_path / "state"), time.time()
    job = store.job(1)
    with store.change(job, job.standing, "started", now=1.0, attempt=1) as change:
        change.attempt_started(1, Moment(1.0))
    store.close()

    async def story() -> None:
        async with running(tmp_path / "state") as it:

            async def begun() -> bool:
                return (it.service.run_dir(1, 1) / "waiting-0").exists()

            assert await wait_async(begun, "the job to begin at last")
            [attempt] = it.engine.store.attempts(1)
            assert (attempt.started or 0.0) >= before
            it.release(1)
            await it.reach(1, "succeeded")

    asyncio.run(story())


def test_cpu_jobs_wait_for_ranks_and_take_their_turn(tmp_path: Path) -> None:
    config = replace(Config(), limits=LimitsConfig(cpu_ranks=2))

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            one, _ = await it.service.submit(make_job("release"), uid=0, idempotency_key=None)
            two, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            assert await it.waits(two.id) == (
                "needs 2 CPU ranks: 2 of limits.cpu_ranks = 2 are in use"
            )
            assert (await it.service.job(two.id)).reason == await it.waits(two.id)
            await it.reach(one.id, "running")
            it.release(one.id)
            assert (await it.reach(two.id, "succeeded")).reason is None

    asyncio.run(story())


def test_the_feed_wakes_up_when_something_happens(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as it:
            waiting = asyncio.create_task(it.service.events(0, 20))
            await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            assert (await waiting)[0].kind == "submit"
            assert await it.service.events(10**30, 0) == []

            async def over() -> bool:
                return len(await it.service.events(0, 0)) == 4

            await wait_async(over, "the job to be over")
            kinds = [event.kind for event in await it.service.events(0, 0)]
            assert kinds == ["submit", "admit", "started", "finished"]

    asyncio.run(story())


def test_an_export_that_fails_is_told_and_the_job_has_succeeded(tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            wanted = {"export_on_finish": "bf16"}
            job = make_job("steps=3 exit=0", checkpoint=wanted, output_dir=str(out))
            one, _ = await it.service.submit(job, uid=0, idempotency_key=None)
            ended = await it.reach(one.id, "succeeded")
            assert ended.reason == (
                "all its steps are done and saved; the export failed: "
                f"{out} holds no checkpoint to export"
            )
            await it.service.resume(one.id, uid=0)
            done, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(done.id, "succeeded")
            with pytest.raises(Conflict, match="has succeeded: all its steps are done; to train"):
                await it.service.resume(done.id, uid=0)

    asyncio.run(story())


SAVES = "attempt=1:stop attempt=2:release exit=0"


@dataclass
class Host:
    """Memory that is set by hand, looked at each half second."""

    guard: HostMemoryGuard
    free_gib: float = 40.0
    clock: float = 0.0
    readings: tuple[HostReading, ...] = ()
    """Of a control group."""

    def look(self, times: int = 12, rate: float = 0.0) -> None:
        """So many looks, between which `rate` GiB per second go."""
        for _ in range(times):
            self.clock += 0.5
            self.free_gib = max(0.0, self.free_gib - rate / 2)
            self.guard.check()


@asynccontextmanager
async def guarded(
    tmp_path: Path, most: str, held: dict[int, int]
) -> AsyncIterator[tuple[Running, Host]]:
    """`held` are GiB of jobs. The daemon's own loop looks on at nothing."""
    config = replace(CONFIG, pressure=PressureConfig(most="nothing"))
    async with running(tmp_path / "state", config=config) as it:
        engine = it.engine
        host = Host(engine.pressure)
        host.guard = engine.pressure = HostMemoryGuard(
            PressureConfig(most=most),
            engine.pressure._asking,
            engine._running,
            lambda: HostMemoryNow(0, {job: size * GIB for job, size in held.items()}),
            expected=dict,
            wake=engine._wake.set,
            read=lambda: (*host.readings, HostReading(TOTAL, int(host.free_gib * GIB))),
            clock=lambda: host.clock,
        )
        yield it, host


async def start(it: Running, fake: str, priority: int = 0) -> JobView:
    spec = make_job(fake, ranks=1)
    job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
    await it.reach(job.id, "running")
    if priority:
        await it.service.set_priority(job.id, priority, uid=0)
    return job


async def trains(it: Running, job_id: int) -> None:
    async def stepped() -> bool:
        return (await it.service.job(job_id)).progress is not None

    await wait_async(stepped, f"a step of job {job_id}")


def test_no_job_starts_while_memory_runs_out_and_jobs_do_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            host.look(20, rate=3.0)
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            why = await it.waits(job.id)
            assert why.startswith("no job starts while the memory of the host runs out: 10.0 of")
            assert why.endswith("used up in about 3 s at this rate")
            host.free_gib = 50.0
            host.look(200)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_the_job_of_lowest_value_saves_and_goes_on_later(tmp_path: Path) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "save", held) as (it, host):
            high = await start(it, SAVES, priority=5)
            low = await start(it, SAVES)
            held |= {high.id: 20, low.id: 10}
            for job in (high, low):
                await trains(it, job.id)
            host.free_gib = 25.0
            host.look(20, rate=1.0)
            host.look(20)
            given = await it.reach(low.id, "queued")
            assert (await it.service.job(high.id)).state == "running"
            assert given.reason is not None
            assert "stops because the memory of the host runs out" in given.reason
            (row,) = it.engine.store.yields.of(low.id)
            assert (row.purpose, row.saved_step, row.steps_lost) == ("relieve", 7, 0)
            assert it.engine.store.job(low.id).standing.restarts_used == 0
            host.free_gib = 50.0
            host.look(200)
            await it.reach(low.id, "running")

    asyncio.run(story())


def test_one_that_does_not_save_in_time_is_ended_and_goes_on_later(tmp_path: Path) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "stop", held) as (it, host):
            job = await start(it, "steps=1 deaf hang")
            held[job.id] = 20
            await trains(it, job.id)
            host.free_gib = 25.0
            host.look(20, rate=1.0)  # asked
            assert (await it.service.job(job.id)).state == "yielding"
            host.look(12, rate=4.0)
            ended = await it.reach(job.id, "queued")
            assert it.engine.store.job(job.id).standing.restarts_used == 0
            assert ended.attempts[0].cause is not None

    asyncio.run(story())


def test_a_job_that_saves_for_another_reason_is_not_asked_again_and_may_be_ended(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "stop", held) as (it, host):
            job = await start(it, "steps=1 deaf hang")
            held[job.id] = 20
            await trains(it, job.id)
            await it.service.pause(job.id, uid=0)
            host.free_gib = 25.0
            host.look(20, rate=1.0)
            assert (await it.service.job(job.id)).state == "pausing"
            host.look(12, rate=4.0)
            await it.reach(job.id, "paused")
            (row,) = it.engine.store.yields.of(job.id)
            assert row.purpose == "pause"

    asyncio.run(story())


def test_a_limit_of_the_control_group_is_looked_at_for_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            for step in range(12):
                host.readings = (HostReading(8 * GIB, (4 * GIB) - step * GIB // 4, of_limit=True),)
                host.look(1)
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            why = await it.waits(job.id)
            assert "1.2 of the 8.0 GiB of memory of the daemon's control group are left" in why
            host.readings = ()
            host.look(120)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_a_small_limit_that_is_hardly_used_lets_jobs_start_on_a_large_host(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            host.readings = (HostReading(2 * GIB, int(1.9 * GIB), of_limit=True),)
            host.look(20)  # 1.9 GiB are a 33rd of what the host has
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())
