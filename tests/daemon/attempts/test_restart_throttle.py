"""After a reboot jobs load their checkpoints a few at a time."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.waiting import wait_async
from zerotoolsd.attempts.restart_throttle import RestartThrottle
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow


def attempt(job_id: int, number: int = 2) -> AttemptRow:
    return AttemptRow(
        job_id=job_id,
        number=number,
        token=f"{job_id}-{number}",
        state=LAUNCHING,
        run_dir=f"/jobs/{job_id}/attempt-{number}",
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )


def test_eight_jobs_after_a_reboot_load_two_at_a_time() -> None:
    now, stepped = [0.0], set[int]()
    config = RetryConfig(at_once=2)
    loading = RestartThrottle(config, lambda each: each.job_id not in stepped, lambda: now[0])

    def begin(*job_ids: int) -> list[int]:
        begun = [job for job in job_ids if loading.why_not_now(attempt(job)) is None]
        for job in begun:
            loading.began(attempt(job))
        return begun

    assert [begin(job) for job in (1, 2, 3)] == [[1], [2], []]
    said = "waits for its turn to load: jobs 1, 2 load now, and retry.at_once = 2"
    assert loading.why_not_now(attempt(3)) == said
    assert loading.why_not_now(attempt(9, number=1)) is None  # it comes as it was submitted
    assert loading.why_not_now(attempt(2)) is None  # it began, and is begun once more
    stepped.add(1)
    assert [begin(job) for job in (3, 4)] == [[3], []]
    now[0] = 61.0  # those that report nothing
    assert [begin(job) for job in (4, 5, 6, 7, 8)] == [[4], [5], [], [], []]


def test_jobs_that_are_started_again_wait_for_their_turn_with_the_reason(tmp_path: Path) -> None:
    config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01, at_once=1))

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            ids = []
            for number in (1, 2):
                job = make_job("release exit=1", max_restarts=1, name=f"n{number}")
                made = await it.service.submit(job, uid=os.geteuid(), idempotency_key=None)
                ids.append(made[0].id)
                await it.reach(ids[-1], "running")
            for job_id in ids:
                it.release(job_id)

            async def waits() -> int | None:
                for job_id in ids:
                    job = await it.service.job(job_id)
                    if "waits for its turn to load" in str(job.reason):
                        assert job.state == "launching"
                        return job_id
                return None

            last = await wait_async(waits, "one of the two to wait for its turn")
            (first,) = set(ids) - {last}
            await it.reach(first, "running")
            it.release(first, 2)
            await it.reach(last, "running")
            it.release(last, 2)
            await it.reach(last, "failed")

    asyncio.run(story())
