from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.waiting import wait_async
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.rows import Lease
from zerotoolsd.resources.gpu_sharing import over_use
from zerotoolsd.resources.gpu_sharing.idle_gpus import IdleGpus


def gpus(*percents: int | None) -> list[Gpu]:
    return [
        replace(fake_gpu(index), utilization_percent=percent)
        for index, percent in enumerate(percents)
    ]


def leases(*indices: int, job: int = 7, size: int | None = None) -> list[Lease]:
    return [Lease(gpu_uuid=f"GPU-fake-{n}", job_id=job, attempt=1, bytes=size) for n in indices]


def said(it: IdleGpus, held: list[Lease], seen: list[Gpu], now: float) -> list[int]:
    return [lease.job_id for lease, _ in it.look(held, seen, now)]


def test_a_job_that_uses_none_of_its_gpus_is_named_once_and_shown_while_it_lasts() -> None:
    it = IdleGpus(600.0, lambda uuid: uuid.replace("GPU-fake-", "GPU "))
    held = leases(0, 1)
    assert said(it, held, gpus(0, 0), 100.0) == []
    assert said(it, held, gpus(0, 0), 699.0) == []
    assert it.why(7) is None
    assert said(it, held, gpus(0, 0), 700.0) == [7]
    assert said(it, held, gpus(0, 0), 1300.0) == []
    assert it.why(7) == "it holds GPU 0, GPU 1 and has not used them for 20 min"
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
    monkeypatch.setattr(over_use, "LOOK_SECONDS", 0.02)
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
                return seen.state == "running" and "has not used them for" in str(seen.reason)

            await wait_async(shown, "it to be shown")
            assert [e.kind for e in it.engine.store.events(0)].count("gpus_idle") == 1
            it.release(job.id)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())
