"""What users change of jobs in the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running
from tests.daemon.service.test_job_requests import ME, refusal, submit, tell
from zerotools.core.errors import BadRequest
from zerotoolsd.interface.api_errors import Conflict
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.queue_terms import Dependency, QueueTerms

FIVE = {"ranks": 5, "train": {"steps": 1, "batch_size": 5}}


async def submit_under(it: Running, terms: QueueTerms, **changes: Any) -> JobView:
    job, _ = await it.service.submit(
        make_job("release exit=0", **changes), uid=ME, idempotency_key=None, terms=terms
    )
    return job


def test_a_higher_priority_starts_first_also_where_it_is_given_later(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release exit=0", **FIVE)
        await it.reach(first.id, "running")
        later = [await submit(it, "release exit=0", **FIVE) for _ in range(2)]
        urgent = await submit_under(it, QueueTerms(priority=3), **FIVE)
        assert urgent.priority == 3
        assert (await it.service.set_priority(later[1].id, 7, uid=ME)).priority == 7
        it.release(first.id)
        for job_id in (later[1].id, urgent.id, later[0].id):
            await it.reach(job_id, "running")
            it.release(job_id)
        await it.reach(later[0].id, "succeeded")
        said = await refusal(it.service.set_priority(later[0].id, 2, uid=ME), Conflict)
        assert said == f"job {later[0].id} is over: it is succeeded; it cannot get another priority"

    tell(tmp_path / "state", story)


def test_a_job_starts_after_others_as_they_had_to_end(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release exit=0")
        failing = await submit(it, "release exit=2", max_restarts=0)
        for each in (first, failing):
            await it.reach(each.id, "running")
        both = (Dependency(job_id=first.id), Dependency(job_id=failing.id, condition="any"))
        job = await submit_under(it, QueueTerms(after=both))
        assert (job.state, job.reason) == (
            "waiting",
            f"waits for job {first.id} (running) to succeed, and for job {failing.id} (running) "
            "to end",
        )
        spoiled = await submit_under(it, QueueTerms(after=(Dependency(job_id=failing.id),)))
        for job_id in (first.id, failing.id):
            await it.reach(job_id, "running")
            it.release(job_id)
        await it.reach(job.id, "running")
        shown = await it.reach(spoiled.id, "on_hold")
        assert shown.reason == (
            f"it was to start after job {failing.id} had succeeded, which has failed; to "
            f"start it anyway: zerotools release {spoiled.id}"
        )
        again = QueueTerms(after=(Dependency(job_id=failing.id),))
        said = await refusal(submit_under(it, again), Conflict)
        assert said.startswith(f"after: job {failing.id} has failed, so it can no longer succeed")
        missing = QueueTerms(after=(Dependency(job_id=99),))
        said = await refusal(submit_under(it, missing), BadRequest)
        assert said == "after: job 99 does not exist, or is not yours"
        released = await it.service.release(spoiled.id, uid=ME)
        assert released.after == ({"job": failing.id, "condition": "any", "state": "failed"},)
        await it.reach(spoiled.id, "running")

    tell(tmp_path / "state", story)
