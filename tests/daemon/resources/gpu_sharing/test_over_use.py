"""Jobs that share a GPU, and those that use more than they declared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.waiting import wait_async
from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import GpuProcess
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.rows import Lease
from zerotoolsd.resources.gpu_sharing import over_use
from zerotoolsd.resources.gpu_sharing.measured_use import MeasuredUse
from zerotoolsd.resources.gpu_sharing.over_use import GIB, OverUse
from zerotoolsd.supervisor.durable import read_json


def lease(job_id: int, size: int | None) -> Lease:
    return Lease(gpu_uuid="GPU-0", job_id=job_id, attempt=1, bytes=size)


def test_who_uses_more_is_said_once_with_both_numbers() -> None:
    over = OverUse(GIB, lambda uuid: "GPU 3")
    leases = [lease(1, 2 * GIB), lease(2, 2 * GIB), lease(3, None)]
    use = MeasuredUse(
        {(1, 1): {"GPU-0": 3 * GIB}, (2, 1): {"GPU-0": 4 * GIB}, (3, 1): {"GPU-0": 9 * GIB}}
    )
    ((found, said),) = over.look(leases, use)
    assert found.job_id == 2
    assert said.startswith("it uses 4.0 GiB of GPU 3, and declared memory.per_gpu = 2.0 GiB (and 1")
    assert over.look(leases, use) == []
    assert (over.why(1), over.why(2)) == (None, said)
    assert over.look([], use) == []
    assert over.why(2) is None


def small(gib: int) -> JobSpec:
    return make_job(
        "release exit=0", device="cuda", gpus=1, ranks=None, memory={"per_gpu": f"{gib}GiB"}
    )


async def submit(it: Running, gib: int) -> JobView:
    view, _ = await it.service.submit(small(gib), uid=0, idempotency_key=None)
    return view


def pid_of_rank(it: Running, job_id: int) -> int:
    record = read_json(it.service.run_dir(job_id, 1) / "run.json")
    assert record is not None
    return int(record["ranks"][0]["pid"])


def test_two_jobs_share_a_gpu_and_a_third_waits_for_its_share(tmp_path: Path) -> None:
    async def queue() -> None:
        async with running(tmp_path / "state", FakeProbe([fake_gpu(0, used_gib=0)])) as it:
            views = [await submit(it, 30) for _ in range(3)]
            for view in views[:2]:
                await it.reach(view.id, "running")
            why = await it.waits(views[2].id)
            assert "0 of 1 have it: GPU 0: has 19.0 GiB left" in why
            assert [(x.job_id, x.bytes) for x in it.engine.store.leases()] == [
                (1, 30 * GIB),
                (2, 30 * GIB),
            ]
            it.release(views[0].id)
            await it.reach(views[2].id, "running")
            for view in views[1:]:
                it.release(view.id)
                await it.reach(view.id, "succeeded")
            assert it.engine.store.leases() == []

    asyncio.run(queue())


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_uses_more_is_named_and_ended_only_where_that_is_set(
    tmp_path: Path, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_use, "LOOK_SECONDS", 0.02)
    config = replace(CONFIG, gpus=replace(CONFIG.gpus, end_over_declared=ends))

    async def queue() -> None:
        probe = FakeProbe([fake_gpu(0, used_gib=0)])
        async with running(tmp_path / "state", probe, config) as it:
            view = await submit(it, 2)
            await it.reach(view.id, "running")

            async def has_ranks() -> bool:
                record = read_json(it.service.run_dir(view.id, 1) / "run.json")
                return bool(record and "ranks" in record)

            await wait_async(has_ranks, "its rank")
            process = GpuProcess(pid_of_rank(it, view.id), 5 * GIB)
            probe.gpus = [fake_gpu(0, used_gib=5, processes=[process])]

            async def said() -> str | None:
                found = [e.why for e in it.engine.store.events(0) if e.kind == "over_declared"]
                return found[0] if found else None

            why = str(await wait_async(said, "it to be named"))
            assert "it uses 5.0 GiB of GPU 0, and declared memory.per_gpu = 2.0 GiB" in why
            if ends:
                ended = await it.reach(view.id, "cancelled")
                assert "cancelled by zerotoolsd ([gpus] end_over_declared)" in str(ended.reason)
            else:
                shown = await it.service.job(view.id)
                assert (shown.state, shown.reason) == ("running", why)
                # What it holds beyond its share is left for nobody: 80 less 2.5 that it may, and
                # 2.5 more that it does.
                large = await submit(it, 76)
                assert "GPU 0: has 75.0 GiB left" in await it.waits(large.id)
                await it.service.cancel(large.id, uid=0)
                it.release(view.id)
                await it.reach(view.id, "succeeded")

    asyncio.run(queue())
