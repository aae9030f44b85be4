"""Elastic jobs in the daemon: started on what is free, and shown with their sizes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from zerotools.cli.commands.show import page
from zerotools.cli.job_views.describe import ranks
from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.fake import FakeProbe, fake_gpu
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
