"""Elastic jobs in the daemon: started on what is free, and shown with their sizes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.waiting import wait_async
from zerotools.cli.commands.show import page
from zerotools.cli.job_views.describe_job import ranks
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.config.config_tables import ElasticConfig
from zerotoolsd.queue.store import Store

RANGE = {"min": 1, "max": 4}


def gpu_job(fake: str, **changes: object) -> JobSpec:
    return make_job(fake, **{"device": "cuda", "gpus": RANGE, "ranks": None, **changes})


def test_a_job_starts_on_what_is_free_with_its_batch_divided(tmp_path: Path) -> None:
    strange = (fake_gpu(0, used_gib=30), *(fake_gpu(i, used_gib=0) for i in (1, 2, 3)))

    async def story() -> None:
        async with running(tmp_path / "state", FakeProbe(strange)) as it:
            job, _ = await it.service.submit(gpu_job("env"), uid=0, idempotency_key=None)
            assert (job.sizes, job.world_size) == ((1, 2, 4), 1)
            assert ranks(job.to_json()) == "1-4 GPU"
            done = await it.reach(job.id, "succeeded")
            assert done.attempts[0].gpu_uuids == ("GPU-fake-1", "GPU-fake-2")
            assert (done.attempts[0].world_size, done.world_size) == (2, 2)
            assert ranks(done.to_json()) == "2 of 1-4 GPU"
            lines = page(done.to_json(), 200)
            head = next(line.split() for line in lines if line.startswith("attempt"))
            assert head[2] == "ranks"
            run = it.service.run_dir(job.id, 1)
            env = json.loads((run / "rank-1.log").read_text())
            assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")
            # What the job was stays what it was: a queue that is rebuilt finds its range.
            assert json.loads((run / "spec.json").read_text())["gpus"] == RANGE

    asyncio.run(story())


def test_ranks_of_the_cpu_in_use_are_those_of_the_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as it:  # of 8 ranks
            six = make_job("release", ranks=6, train={"steps": 1, "batch_size": 6})
            first, _ = await it.service.submit(six, uid=0, idempotency_key=None)
            await it.reach(first.id, "running")
            small = make_job("release", ranks=RANGE)
            second, _ = await it.service.submit(small, uid=0, idempotency_key=None)
            assert (await it.reach(second.id, "running")).world_size == 2
            third, _ = await it.service.submit(small, uid=0, idempotency_key=None)
            said = "needs 1 CPU rank: 8 of limits.cpu_ranks = 8 are in use"
            assert await it.waits(third.id) == said
            explained = await it.service.explain(third.id)
            assert [each["what"] for each in explained["holders"]] == ["6 CPU ranks", "2 CPU ranks"]
            it.release(second.id)
            assert (await it.reach(third.id, "running")).world_size == 2
            it.release(first.id)
            it.release(third.id)
            await it.reach(third.id, "succeeded")

    asyncio.run(story())


def test_the_size_survives_a_queue_that_is_rebuilt(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def first() -> None:
        async with running(state) as it:
            job, _ = await it.service.submit(
                make_job("exit=0", ranks=RANGE), uid=0, idempotency_key=None
            )
            await it.reach(job.id, "succeeded")

    asyncio.run(first())
    for name in state.glob("zerotools.db*"):
        name.unlink()

    async def again() -> None:
        async with running(state, rebuild=True) as it:
            job = await it.service.job(1)
            assert (job.world_size, job.sizes) == (4, (1, 2, 4))

    asyncio.run(again())
    store = Store(state)
    assert [attempt.world_size for attempt in store.attempts(1)] == [4]
    store.close()


AT_ONCE = replace(CONFIG, elastic=ElasticConfig(after_seconds=0))
HAS_AN_HOUR = "left=3600 attempt=1:stop attempt=2:release exit=0"


async def step_7(it: Running, job_id: int) -> None:
    """Until the first attempt has said how long it still runs."""
    progress = it.service.run_dir(job_id, 1) / "progress.jsonl"

    async def reported() -> bool:
        return progress.exists() and '"step": 7' in progress.read_text()

    await wait_async(reported, "step 7")


async def second_attempt(it: Running, job_id: int) -> None:
    """Until there is one."""

    async def begun() -> bool:
        return len(it.engine.store.attempts(job_id)) > 1

    await wait_async(begun, "the second attempt")


def test_a_job_grows_into_what_comes_free_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=AT_ONCE) as it:  # of 8 ranks
            seven = make_job("release exit=0", ranks=7, train={"steps": 1, "batch_size": 7})
            other, _ = await it.service.submit(seven, uid=0, idempotency_key=None)
            await it.reach(other.id, "running")
            spec = make_job(HAS_AN_HOUR, ranks=RANGE)
            job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
            assert (await it.reach(job.id, "running")).world_size == 1
            await step_7(it, job.id)
            said = (await it.service.explain(job.id))["size"]
            assert said == (
                "has 1 rank, and takes 2 or 4 as soon as no other job can use so many: 4 ranks "
                "would save 2700 s of the 3600 s left, and a change costs 60 s"
            )
            it.release(other.id)
            await second_attempt(it, job.id)
            grown = await it.reach(job.id, "running")
            assert grown.world_size == 4
            assert grown.attempts[1].resumed_from == str(Path(job.output_dir) / "step-00000007")
            (row,) = it.engine.store.yields.of(job.id)
            assert (row.purpose, row.saved_step, row.steps_lost) == ("resize", 7, 0)
            events = [each for each in await it.service.events(0, 0) if each.job_id == job.id]
            assert [each.kind for each in events][3:6] == ["yield", "stopped", "admit"]
            why = (
                "grows from 1 to 4 ranks: that saves 2700 s of the 3600 s left, and the change "
                "costs 60 s"
            )
            assert events[3].why == why
            assert events[4].why == f"{why}; saved at step 7 and stopped, 0 steps lost"
            assert it.engine.store.job(job.id).standing.restarts_used == 0
            said = (await it.service.explain(job.id))["size"]
            assert said == "has 4 ranks, its maximum"
            it.release(job.id, attempt=2)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_a_job_leaves_what_another_waits_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=AT_ONCE) as it:  # of 8 ranks
            four = make_job("release exit=0", ranks=4, train={"steps": 1, "batch_size": 4})
            first, _ = await it.service.submit(four, uid=0, idempotency_key=None)
            three = make_job("release exit=0", ranks=3, train={"steps": 1, "batch_size": 3})
            second, _ = await it.service.submit(three, uid=0, idempotency_key=None)
            spec = make_job(HAS_AN_HOUR, ranks=RANGE)
            job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
            assert (await it.reach(job.id, "running")).world_size == 1
            waits, _ = await it.service.submit(
                make_job("exit=0", ranks=7, train={"steps": 1, "batch_size": 7}),
                uid=0,
                idempotency_key=None,
            )
            await step_7(it, job.id)
            it.release(first.id)  # four are free, and kept for the job that waits for seven
            await it.reach(first.id, "succeeded")
            it.release(second.id)
            await it.reach(waits.id, "succeeded")
            await second_attempt(it, job.id)
            (row,) = it.engine.store.yields.of(job.id)
            ended = it.engine.store.attempts(waits.id)[0].ended
            assert ended is not None
            assert row.asked >= ended
            it.release(job.id, attempt=2)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_a_job_of_gpus_grows_into_those_that_a_stranger_leaves(tmp_path: Path) -> None:
    mine = tuple(fake_gpu(i, used_gib=0) for i in (1, 2, 3))
    strange = (fake_gpu(0, used_gib=30), *mine[:1], *(fake_gpu(i, used_gib=30) for i in (2, 3)))

    async def story() -> None:
        probe = FakeProbe(strange)
        async with running(tmp_path / "state", probe, config=AT_ONCE) as it:
            job, _ = await it.service.submit(gpu_job(HAS_AN_HOUR), uid=0, idempotency_key=None)
            assert (await it.reach(job.id, "running")).world_size == 1
            await step_7(it, job.id)
            probe.gpus = (strange[0], *mine)
            it.engine.announce()  # it looks again by itself within a minute
            await second_attempt(it, job.id)
            grown = await it.reach(job.id, "running")
            assert len(grown.attempts[1].gpu_uuids) == 2
            assert "GPU-fake-0" not in grown.attempts[1].gpu_uuids
            it.release(job.id, attempt=2)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())
