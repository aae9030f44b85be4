"""What `explain_job` says, by the queue's own rows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.http.api.made_views import a_job, a_view
from tests.daemon.made_attempts import an_attempt_row
from tests.daemon.waiting import wait_async
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.service.explain_job import (
    Waiting,
    explain_job,
)
from zerotoolsd.service.make_job_view import attempt_view

JOB = JobRow(
    id=1,
    uid=0,
    name="tiny",
    spec_text="{}",
    given_text=None,
    spec_version="0.1.0",
    output_dir="/out",
    standing=JobStatus(state="waiting_retry", restarts_used=2, eligible_at=500.0),
    created=1.0,
    started=2.0,
    ended=None,
).with_reading(a_job(max_restarts=3, retry="auto"))


def explained(*attempts: AttemptRow) -> dict[str, Any]:
    views = tuple(attempt_view(attempt) for attempt in attempts)
    return explain_job(JOB, attempts, a_view(1, a_job(), attempts=views), [], waiting=Waiting())


def test_the_last_end_and_what_is_left_of_its_retries() -> None:
    record = {"outcome": "crashed", "cause": "it hangs", "rank": 2, "steps_done": 40}
    saved = {**record, "checkpoint": {"step": 30}}
    tree = explained(
        an_attempt_row(1, cause="hang", result=saved),
        an_attempt_row(2, cause="hang", result=saved),
        an_attempt_row(3, state="running", resumed_from="/out/step-30"),
    )
    assert tree["end"] == {
        "attempt": 2,
        "cause_kind": "hang",
        "cause": "it hangs",
        "rank": 2,
        "exit_code": None,
        "signal": None,
        "steps_done": 40,
        "saved_step": 30,
        "ended": 2.0,
    }
    assert tree["resumed_from"] == "/out/step-30"
    assert tree["retries"] == {
        "used": 2,
        "max": 3,
        "rule": "auto",
        "cause": "hang",
        "after": "ranks without progress",
        "cause_ends": 2,
        "cause_max": 2,
        "counts": True,
        "next_try": 500.0,
    }


def test_a_job_that_has_not_begun_has_no_end_and_used_nothing() -> None:
    tree = explained()
    assert (tree["end"], tree["resumed_from"], tree["retries"]["cause"]) == (None, None, None)


def test_what_a_rank_wrote_of_itself_is_not_believed() -> None:
    assert explained(an_attempt_row(1, result={"rank": "x" * 99}))["end"]["rank"] is None


def test_a_job_that_waits_is_told_its_place_and_who_has_the_gpus(tmp_path: Path) -> None:
    config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))
    probe = FakeProbe([fake_gpu(0, used_gib=0), fake_gpu(1, used_gib=0)])

    async def story() -> None:
        async with running(tmp_path / "state", probe, config=config) as it:
            first = make_job("release", device="cuda", gpus=1, ranks=None, time_limit=3600)
            second = make_job("release", device="cuda", gpus=1, ranks=None)
            both = make_job("exit=0", device="cuda", gpus=2, ranks=None)
            for spec in (first, second, both, both):
                await it.service.submit(spec, uid=0, idempotency_key=None)
            for number in (1, 2):
                await it.reach(number, "running")

            async def placed() -> dict[str, Any] | None:
                tree = await it.service.explain(4)
                return tree if (tree["place"] or {}).get("of") == 2 else None

            tree = await wait_async(placed, "those that started to leave the line")
            assert tree is not None
            assert tree["why"] == await it.waits(4)
            assert tree["place"] == {"position": 2, "of": 2, "what": "GPUs", "needs": 2}
            one, two = tree["holders"]
            assert (one["what"], one["job_id"], one["attempt"]) == ("GPU 0", 1, 1)
            most = 3600 + config.stop.grace_seconds
            assert most - 60 < one["until"] - one["since"] <= most + 1
            assert (two["what"], two["job_id"], two["until"]) == ("GPU 1", 2, None)
            assert [event["kind"] for event in tree["events"]] == ["submit"]
            assert (await it.service.explain(1))["place"] is None

    asyncio.run(story())
