"""A job that is over, once more from the start; and a queue that starts nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running
from tests.daemon.service.test_answer_requests import ME, refusal, submit, tell
from zerotoolsd.dispatch.remove_job_files import names_of
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.start_conditions import ANY, Dependency, QueueTerms
from zerotoolsd.service.admission.checkpoints_and_conflicts import real_paths
from zerotoolsd.service.operations.rerun import from_the_start
from zerotoolsd.users.account import user_name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((None, None), (None, None)),
        (("/runs/a", None), ("/runs/a", None)),
        (("/runs/a", "/runs/b/step-1"), ("/runs/a", "/runs/b/step-1")),
        (("/runs/a", "/runs/a"), ("/runs/a", None)),
        (("/runs/a", "/runs/a/../a/step-1"), ("/runs/a", None)),
        (("/state/jobs/7/output", "/state/jobs/7/output"), (None, None)),
        (("/state/jobs/7/output", "/runs/b"), (None, "/runs/b")),
    ],
)
def test_what_it_was_before_it_was_resumed(
    before: tuple[str | None, str | None], after: tuple[str | None, str | None]
) -> None:
    spec = replace(make_job("exit=0"), output_dir=before[0], resume_from=before[1])
    found = from_the_start(spec, ["/state/jobs"])
    assert (found.output_dir, found.resume_from) == after


def test_its_own_checkpoint_is_known_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    output, start = str(tmp_path / "real" / "out"), str(tmp_path / "link" / "out")
    spec = replace(make_job("exit=0"), output_dir=output, resume_from=start)
    real = dict(zip((output, start), real_paths([output, start]), strict=True))
    assert from_the_start(spec, ["/state/jobs"], real).resume_from is None
    assert from_the_start(spec, ["/state/jobs"]).resume_from == start
    (tmp_path / "jobs").symlink_to(tmp_path / "real")
    own = replace(make_job("exit=0"), output_dir=str(tmp_path / "real" / "7" / "output"))
    assert from_the_start(own, names_of(str(tmp_path / "jobs"))).output_dir is None


def test_a_retry_is_a_new_job_with_a_directory_of_its_own(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "steps=2 save=2 exit=0", name="tiny")
        said = await refusal(it.service.retry(job.id, uid=ME), Conflict)
        assert said.startswith(f"job {job.id} is not over: it is ")
        await it.reach(job.id, "succeeded")
        again = await it.service.retry(job.id, uid=ME)
        assert (again.id, again.name) == (job.id + 1, "tiny")
        assert again.output_dir == job.output_dir.replace(f"/{job.id}/", f"/{again.id}/")
        ended = await it.reach(again.id, "succeeded")
        assert ended.attempts[0].resumed_from is None
        other = await it.service.retry(job.id, uid=ME, output_dir=str(tmp_path / "other"))
        assert other.output_dir == str(tmp_path / "other")
        await it.reach(other.id, "succeeded")

    tell(tmp_path / "state", story)


@pytest.mark.parametrize("from_start", [True, False])
def test_what_its_user_has_set_holds_for_the_next_too(tmp_path: Path, from_start: bool) -> None:
    """The job file, and the terms that it had in the queue."""
    begin = time.time() + 1e6
    changes: dict[str, Any] = {
        "name": "mine",
        "env": {"A": "b"},
        "time_limit": "2h",
        "max_restarts": 2,
        "output_dir": str(tmp_path / "out"),
        "notify": {"on": ["failed"], "command": ["true"]},
    }

    async def story(it: Running) -> None:
        runs = await submit(it, "release exit=0")
        over = await submit(it, "exit=0")
        await it.reach(over.id, "succeeded")
        after = (Dependency(job_id=runs.id), Dependency(job_id=over.id, condition=ANY))
        terms = QueueTerms(priority=7, begin=begin, after=after, hold=True)
        job, _ = await it.service.submit(
            make_job("exit=0", **changes), uid=ME, idempotency_key=None, terms=terms
        )
        for ask in (it.service.release, it.service.hold, it.service.release):
            asked = await ask(job.id, uid=ME)
            assert (asked.priority, asked.begin, asked.after) == (7, begin, job.after)
            assert (asked.spec, asked.output_dir) == (job.spec, job.output_dir)
        await it.service.cancel(job.id, uid=ME)
        if from_start:
            again = await it.service.retry(job.id, uid=ME)
        else:
            again = await it.service.resume(job.id, uid=ME)
        assert (again.priority, again.begin, again.state) == (7, begin, "waiting")
        assert again.after == ({"job": runs.id, "condition": "ok", "state": "running"},)
        assert (again.spec, again.output_dir) == (job.spec, job.output_dir)
        await it.reach(runs.id, "running")
        it.release(runs.id)

    tell(tmp_path / "state", story)


def test_a_begin_that_is_over_holds_up_no_retry(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        terms = QueueTerms(begin=time.time() + 0.01)
        job, _ = await it.service.submit(
            make_job("exit=0"), uid=ME, idempotency_key=None, terms=terms
        )
        await it.reach(job.id, "succeeded")
        again = await it.service.retry(job.id, uid=ME)
        assert (again.begin, again.after) == (None, ())
        await it.reach(again.id, "succeeded")

    tell(tmp_path / "state", story)


def test_a_drained_queue_starts_nothing_also_after_a_restart(tmp_path: Path) -> None:
    async def drained(it: Running) -> None:
        runs = await submit(it, "release exit=0")
        await it.reach(runs.id, "running")
        health = await it.service.drain("new driver", uid=ME)
        assert (health["drain"]["uid"], health["drain"]["why"]) == (ME, "new driver")
        waits = await submit(it)
        assert (await it.waits(waits.id)) == (
            f"the queue is drained by {user_name(ME)} (new driver): no job starts until "
            "zerotools undrain"
        )
        it.release(runs.id)
        await it.reach(runs.id, "succeeded")
        assert (await it.service.job(waits.id)).state == "queued"

    async def later(it: Running) -> None:
        await it.waits(2)
        assert it.service.health()["drain"]["why"] == "new driver"
        assert it.engine.machine.lets_go()  # of the GPUs, as nothing runs: they can be reset
        assert (await it.service.undrain(uid=ME))["drain"] is None
        assert not it.engine.machine.lets_go()
        await it.reach(2, "succeeded")

    tell(tmp_path / "state", drained)
    tell(tmp_path / "state", later)
