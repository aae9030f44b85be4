"""The engine with GPUs: leases, waiting, losing sight of them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, leave_attempt, running
from tests.daemon.made_attempts import own_token
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.fake_gpu_probe import FakeProbe, fake_gpu
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts import prepare_run_directory
from zerotoolsd.config.config_tables import LimitsConfig, RetryConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue.clocks import Moment
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
