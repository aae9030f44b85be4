"""Jobs make room for one of higher priority: in a daemon whose ranks pretend."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.service.test_job_requests import ME
from tests.daemon.waiting import wait_async
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotoolsd.config.config_tables import LimitsConfig, PreemptionConfig
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.queue_terms import QueueTerms
from zerotoolsd.queue.tables.preemption_table import PREEMPT
from zerotoolsd.service.explanation import room_of

AT_ONCE = PreemptionConfig(enabled=True, after_seconds=0)
SAVES = "attempt=1:stop attempt=2:release exit=0"


def config(preemption: PreemptionConfig, cpu_ranks: int = 1) -> Any:
    return replace(CONFIG, limits=LimitsConfig(cpu_ranks=cpu_ranks), preemption=preemption)


async def submit(it: Running, fake: str, priority: int = 0, **changes: Any) -> JobView:
    changes = changes or {"ranks": 1}
    job, _ = await it.service.submit(
        make_job(fake, **changes),
        uid=ME,
        idempotency_key=None,
        terms=QueueTerms(priority=priority),
    )
    return job


def test_a_job_saves_for_one_of_higher_priority_and_goes_on_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 release exit=0", priority=3)
            await it.reach(high.id, "running")
            waits = await it.reach(low.id, "queued")
            assert str(waits.reason).startswith(f"stops for job {high.id} of priority 3; ")
            (row,) = it.engine.store.yields.of(low.id)
            assert (row.purpose, row.for_job, row.steps_lost) == (PREEMPT, high.id, 0)

            async def first_step() -> float | None:
                return it.engine.store.yields.of(low.id)[0].first_step

            when = await wait_async(first_step, "the first step of the other job")
            assert when is not None
            assert when >= row.asked
            for job_id in (low.id, high.id):
                (room,) = (await it.service.explain(job_id))["room"]
                assert (room["job_id"], room["for_job"]) == (low.id, high.id)
                assert (room["first_step"], room["steps_lost"]) == (when, 0)
            it.release(high.id)
            await it.reach(high.id, "succeeded")
            await it.reach(low.id, "running")
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")
            assert it.engine.store.job(low.id).standing.restarts_used == 0

    asyncio.run(story())


def test_the_first_step_is_noted_of_a_job_that_is_over_soon_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 exit=0", priority=3)
            await it.reach(high.id, "succeeded")

            async def noted() -> bool:
                return it.engine.store.yields.of(low.id)[0].first_step is not None

            await wait_async(noted, "the first step of the other job")
            await it.reach(low.id, "running")
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")

    asyncio.run(story())


def test_gpus_are_given_back_by_as_many_as_it_needs_and_kept_for_it(tmp_path: Path) -> None:
    train = {"steps": 1, "batch_size": 6}
    gpu: dict[str, Any] = {"device": "cuda", "ranks": None, "train": train}

    async def story() -> None:
        probe = FakeProbe(tuple(fake_gpu(index, used_gib=0) for index in range(3)))
        async with running(tmp_path / "state", probe, config(AT_ONCE)) as it:
            old = [await submit(it, "stop", **gpu, gpus=1) for _ in range(3)]
            for job in old:
                await it.reach(job.id, "running")
            behind = await submit(it, "exit=0", priority=1, **gpu, gpus=3)
            await it.waits(behind.id)  # for which all three give way
            high = await submit(it, "release exit=0", priority=5, **gpu, gpus=2)
            ran = await it.reach(high.id, "running")
            assert len(ran.attempts[0].gpu_uuids) == 2
            it.release(high.id)
            await it.reach(high.id, "succeeded")
            ended = await it.reach(behind.id, "succeeded")
            assert len(ended.attempts) == 1
            for job in old:
                assert (await it.service.job(job.id)).attempts[0].number == 1
                await it.service.cancel(job.id, uid=ME)

    asyncio.run(story())


def test_an_elastic_job_goes_on_at_once_with_what_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE, cpu_ranks=4)) as it:
            sizes = {"ranks": {"min": 1, "max": 4}}
            low = await submit(it, "attempt=1:stop attempt=2:release exit=0", **sizes)
            assert (await it.reach(low.id, "running")).world_size == 4
            high = await submit(it, "release exit=0", priority=3, ranks=2)
            await it.reach(high.id, "running")
            went_on = await it.reach(low.id, "running")
            assert [each.world_size for each in went_on.attempts] == [4, 2]
            it.release(high.id)
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")

    asyncio.run(story())


def test_nobody_is_asked_unless_the_administrator_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(PreemptionConfig())) as it:
            low = await submit(it, "release exit=0")
            await it.reach(low.id, "running")
            high = await submit(it, "exit=0", priority=3)
            await it.waits(high.id)
            assert (await it.service.job(low.id)).state == "running"
            it.release(low.id)
            await it.reach(high.id, "succeeded")
            assert it.engine.store.yields.of(low.id) == []

    asyncio.run(story())


def test_the_job_that_asked_is_cancelled_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, "attempt=1:deaf attempt=1:release attempt=1:stop exit=0")
            await it.reach(low.id, "running")
            high = await submit(it, "exit=0", priority=3)
            await it.reach(low.id, "yielding")
            await it.service.cancel(high.id, uid=ME)
            it.release(low.id)
            ended = await it.reach(low.id, "succeeded")
            assert len(ended.attempts) == 2
            assert (await it.service.job(high.id)).state == "cancelled"

    asyncio.run(story())


def test_what_another_user_s_job_has_made_is_not_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 release exit=0", priority=3)
            await it.reach(high.id, "running")
            store = it.engine.store
            (own,) = room_of(store, store.job(high.id))
            assert (own.steps_lost, own.outcome) == (0, "stopped")
            (others,) = room_of(store, replace(store.job(high.id), uid=ME + 1))
            assert (others.job_id, others.ended) == (low.id, own.ended)
            assert (others.saved_step, others.steps_lost, others.outcome) == (None, None, None)
            for job in (low, high):
                await it.service.cancel(job.id, uid=ME)
            it.release(high.id)
            await it.reach(low.id, "cancelled")

    asyncio.run(story())
