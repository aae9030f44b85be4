"""What users change of jobs in the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running
from tests.daemon.test_jobservice import ME, refusal, submit, tell
from zerotoolsd.service import Conflict, JobView, QueueTerms

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
