"""Jobs that share a GPU, and those that use more than they declared."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.made_attempts import own_token
from tests.daemon.users.other_users import AS_ROOT, UID
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import Gpu, GpuProcess
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.rows import RUNNING, AttemptRow, Lease
from zerotoolsd.resources import check_gpu_use_of_jobs
from zerotoolsd.resources.check_gpu_use_of_jobs import (
    GIB,
    GpuOveruse,
    IdleGpus,
    MeasuredUse,
    measure_gpu_use,
)
from zerotoolsd.supervisor.durable_files import read_json, write_json
from zerotoolsd.supervisor.procfs import Process, boot_id


def lease(job_id: int, size: int | None) -> Lease:
    return Lease(gpu_uuid="GPU-0", job_id=job_id, attempt=1, bytes=size)


def test_who_uses_more_is_said_once_with_both_numbers() -> None:
    over = GpuOveruse(GIB, lambda uuid: "GPU 3")
    leases = [lease(1, 2 * GIB), lease(2, 2 * GIB), lease(3, None)]
    use = MeasuredUse(
        {(1, 1): {"GPU-0": 3 * GIB}, (2, 1): {"GPU-0": 4 * GIB}, (3, 1): {"GPU-0": 9 * GIB}}
    )
    ((found, said),) = over.check(leases, use)
    assert found.job_id == 2
    assert said.startswith(
        "it uses 4.0 GiB of GPU 3, but declared only memory.per_gpu = 2.0 GiB (plus 1"
    )
    assert over.check(leases, use) == []
    assert (over.why(1), over.why(2)) == (None, said)
    assert over.check([], use) == []
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
            assert "0 of 1 GPUs have that much free: GPU 0: has 17.3 GiB left" in why
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
    monkeypatch.setattr(check_gpu_use_of_jobs, "LOOK_SECONDS", 0.02)
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
            assert "it uses 5.0 GiB of GPU 0, but declared only memory.per_gpu = 2.0 GiB" in why
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


def gpus(*percents: int | None) -> list[Gpu]:
    return [
        replace(fake_gpu(index), utilization_percent=percent)
        for index, percent in enumerate(percents)
    ]


def leases(*indices: int, job: int = 7, size: int | None = None) -> list[Lease]:
    return [Lease(gpu_uuid=f"GPU-fake-{n}", job_id=job, attempt=1, bytes=size) for n in indices]


def said(it: IdleGpus, held: list[Lease], seen: list[Gpu], now: float) -> list[int]:
    return [lease.job_id for lease, _ in it.check(held, seen, now)]


def test_a_job_that_uses_none_of_its_gpus_is_named_once_and_shown_while_it_lasts() -> None:
    it = IdleGpus(600.0, lambda uuid: uuid.replace("GPU-fake-", "GPU "))
    held = leases(0, 1)
    assert said(it, held, gpus(0, 0), 100.0) == []
    assert said(it, held, gpus(0, 0), 699.0) == []
    assert it.why(7) is None
    assert said(it, held, gpus(0, 0), 700.0) == [7]
    assert said(it, held, gpus(0, 0), 1300.0) == []
    assert it.why(7) == "it holds GPU 0, GPU 1, but has not used them for 20 min"
    assert said(it, held, gpus(0, 3), 1310.0) == []
    assert it.why(7) is None
    assert said(it, held, gpus(0, 0), 1320.0) == []  # it begins anew
    assert said(it, held, gpus(0, 0), 1920.0) == [7]
    assert said(it, [], gpus(0, 0), 1930.0) == []
    assert it.why(7) is None


@pytest.mark.parametrize(
    ("held", "seen"),
    [
        (leases(0, 1), gpus(0, 40)),
        (leases(0), gpus(None)),
        (leases(3), gpus(0)),
        (leases(0, size=5), gpus(0)),
        ([replace(lease, held_by="pid 3") for lease in leases(0)], gpus(0)),
    ],
    ids=["one is used", "not known", "not seen", "shared", "outlived its job"],
)
def test_of_others_nothing_is_said(held: list[Lease], seen: list[Gpu]) -> None:
    it = IdleGpus(10.0)
    for now in (0.0, 100.0, 10_000.0):
        assert said(it, held, seen, now) == []


def test_it_can_be_switched_off() -> None:
    it = IdleGpus(0.0)
    assert said(it, leases(0), gpus(0), 0.0) == said(it, leases(0), gpus(0), 1e9) == []


@pytest.mark.parametrize("stops", [False, True])
def test_it_is_shown_and_stopped_only_where_that_is_set(
    tmp_path: Path, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_gpu_use_of_jobs, "LOOK_SECONDS", 0.02)
    config = replace(CONFIG, gpus=replace(CONFIG.gpus, idle_seconds=0.05, stop_idle=stops))

    async def story() -> None:
        async with running(tmp_path / "state", FakeProbe([fake_gpu(0)]), config) as it:
            spec = make_job("release exit=0", device="cuda", ranks=None, gpus=1)
            job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
            if stops:
                ended = await it.reach(job.id, "cancelled")
                assert "cancelled by zerotoolsd ([gpus] stop_idle): it holds GPU 0" in str(
                    ended.reason
                )
                return

            async def shown() -> bool:
                seen = await it.service.job(job.id)
                return seen.state == "running" and "has not used it for" in str(seen.reason)

            await wait_async(shown, "it to be shown")
            assert [e.kind for e in it.engine.store.events(0)].count("gpus_idle") == 1
            it.release(job.id)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


PROCESSES = {
    pid: Process(pid=pid, parent=parent, state="S", start_ticks=10 * pid, rss_bytes=0)
    for pid, parent in ((20, 1), (21, 20), (22, 21), (30, 1), (40, 1), (41, 40))
}


def attempt(run_dir: Path, job_id: int, supervisor: int, keeper: int) -> AttemptRow:
    run_dir.mkdir()
    named = [{"pid": pid, "start_ticks": 10 * pid} for pid in (supervisor, keeper)]
    record = {**named[0], "keeper": named[1], "token": own_token(), "boot_id": boot_id()}
    write_json(run_dir / "run.json", record)
    return AttemptRow(
        job_id=job_id,
        number=1,
        token=own_token(),
        state=RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=("GPU-fake-0",),
        resumed_from=None,
        started=1.0,
        ended=None,
        result=None,
    )


def look(tmp_path: Path, *processes: tuple[int, int | None]) -> MeasuredUse:
    ours = [attempt(tmp_path / "7", 7, 21, 20), attempt(tmp_path / "8", 8, 40, 39)]
    gpu = fake_gpu(0, processes=[GpuProcess(pid, used) for pid, used in processes])
    return measure_gpu_use([gpu], ours, PROCESSES.get)


def test_each_attempt_has_what_its_descendants_use_and_strangers_count_for_none(
    tmp_path: Path,
) -> None:
    found = look(tmp_path, (22, 5), (21, 1), (41, 2), (30, 100))
    assert found.of_attempts == {(7, 1): {"GPU-fake-0": 6}, (8, 1): {"GPU-fake-0": 2}}
    assert found.own == {"GPU-fake-0": 8}


def test_where_the_driver_does_not_say_all_nothing_is_known(tmp_path: Path) -> None:
    assert look(tmp_path, (22, 5), (30, None)) == MeasuredUse()
    for name in ("7", "8"):
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    assert look(tmp_path, (22, 5), (999, 3)).own == {}  # pids of another namespace


def test_a_record_of_another_attempt_proves_nothing(tmp_path: Path) -> None:
    ours = attempt(tmp_path / "run", 7, 21, 20)
    write_json(tmp_path / "run" / "run.json", {"pid": 21, "start_ticks": 210, "token": "other"})
    gpu = fake_gpu(0, processes=[GpuProcess(22, 5)])
    assert measure_gpu_use([gpu], [ours], PROCESSES.get).own == {"GPU-fake-0": 0}


@AS_ROOT
def test_a_forged_record_claims_nothing_that_others_use(tmp_path: Path) -> None:
    ours = attempt(tmp_path / "7", 7, 21, 20)
    for path in (tmp_path / "7", tmp_path / "7" / "run.json"):
        os.chown(path, UID, UID)
    gpu = fake_gpu(0, processes=[GpuProcess(22, 5)])
    assert measure_gpu_use([gpu], [ours], PROCESSES.get).of_attempts == {}
