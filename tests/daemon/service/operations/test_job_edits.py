"""Changes of the job file of a job that has not started."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from tests.daemon.dispatchers import Running, running
from tests.daemon.service.operations.test_priority_and_array_changes import FIVE, submit_under
from tests.daemon.service.test_answer_requests import ME, refusal, submit, tell
from zerotools.core.errors import BadRequest
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.start_conditions import AT_ANY_TIME, Dependency, JobEdit, QueueTerms
from zerotoolsd.users.served_users import OWN_ONLY
from zerotoolsd.users.user_limits import LimitsOfUsers


def test_a_queued_job_is_changed_as_a_submit_would_take_it(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release exit=0", **FIVE)
        await it.reach(first.id, "running")
        job = await submit(it, "exit=0", **FIVE, output_dir=str(tmp_path / "a"), env={"A": "s"})
        assert (await it.waits(job.id)).startswith("needs 5 CPU ranks")
        fewer = JobEdit(set={"ranks": 3, "train.batch_size": 3, "name": "few", "env.B": "x"})
        edited = await it.service.edit(job.id, fewer, uid=ME)
        assert (edited.name, edited.world_size, edited.output_dir) == ("few", 3, job.output_dir)
        ended = await it.reach(job.id, "succeeded")
        assert ended.attempts[0].number == 1
        said = await refusal(it.service.edit(job.id, fewer, uid=ME), Conflict)
        assert "only a job that never started can be edited" in said
        said = await refusal(it.service.edit(first.id, fewer, uid=ME), Conflict)
        assert said.startswith(f"job {first.id} is running")
        it.release(first.id)

    tell(tmp_path / "state", story)


def test_what_a_submit_would_refuse_changes_nothing(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        place = str(tmp_path / "a")
        job = await submit_under(it, QueueTerms(hold=True), output_dir=place)
        other = await submit_under(it, QueueTerms(hold=True), output_dir=str(tmp_path / "b"))
        before = await it.service.job(job.id)
        for changes, said in (
            (JobEdit(set={"trian.steps": 2}), "edit: trian.steps: unknown key; did you mean"),
            (JobEdit(set={"train.steps": "x"}), 'train.steps = "x": must be a whole number'),
            (JobEdit(set={"data.text": ["/no/*.txt"]}), "no file matches"),
            (JobEdit(set={"captured_env": {}}), "captured_env: cannot be set here"),
            (JobEdit(unset=("train.batch_size",)), "train.batch_size: is missing"),
            (JobEdit(), "the request has no changes"),
        ):
            assert said in await refusal(it.service.edit(job.id, changes, uid=ME), BadRequest)
        taken = JobEdit(set={"output_dir": other.output_dir})
        said = await refusal(it.service.edit(job.id, taken, uid=ME), Conflict)
        assert f"job {other.id}, which is held, writes there" in said
        assert await it.service.job(job.id) == before
        moved = JobEdit(set={"output_dir": str(tmp_path / "c")})
        assert (await it.service.edit(job.id, moved, uid=ME)).output_dir == str(tmp_path / "c")
        await submit_under(it, QueueTerms(hold=True), output_dir=place)  # it is free again
        own = await it.service.edit(job.id, JobEdit(unset=("output_dir",)), uid=ME)
        assert own.output_dir == str(tmp_path / "state" / "jobs" / str(job.id) / "output")
        both = [it.service.edit(job.id, JobEdit(set={"seed": n}), uid=ME) for n in (1, 2)]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(isinstance(each, Conflict) for each in results) == [False, True]
        spec = (await it.service.job(other.id)).spec
        keys = [JobEdit(set={key: spec[key]}) for key in ("seed", "retry")]  # as they are
        both = [it.service.edit(other.id, each, uid=ME) for each in keys]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(isinstance(each, Conflict) for each in results) == [False, True]

    tell(tmp_path / "state", story)


def test_an_edit_takes_no_more_of_the_queue_than_a_submit(tmp_path: Path) -> None:
    users = replace(OWN_ONLY, quotas=LimitsOfUsers({"max_queued": 1, "queue_bytes": 20_000}))

    async def story() -> None:
        async with running(tmp_path / "state", users=users) as it:
            job = await submit_under(it, QueueTerms(hold=True))
            large = JobEdit(set={"env.A": "x" * 20_000})
            said = await refusal(it.service.edit(job.id, large, uid=ME), Conflict)
            assert said.startswith("the job is not queued: your jobs take ")
            half = JobEdit(set={"env.A": "x" * 6_000})
            await it.service.edit(job.id, half, uid=ME)
            assert it.engine.store.of_user.text_bytes(ME) > 12_000
            said = await refusal(it.service.edit(job.id, large, uid=ME), Conflict)
            await it.service.edit(job.id, JobEdit(unset=("env.A",)), uid=ME)

    asyncio.run(story())


def test_a_ring_is_refused(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit_under(it, QueueTerms(hold=True))
        second = await submit_under(it, QueueTerms(after=(Dependency(job_id=first.id),)))
        third = await submit_under(it, QueueTerms(after=(Dependency(job_id=second.id),)))
        for on, way in (
            (first.id, f"{first.id}"),
            (third.id, f"{third.id}, which is to start after job {second.id}, which"),
        ):
            ring = JobEdit(after=(Dependency(job_id=on),))
            said = await refusal(it.service.edit(first.id, ring, uid=ME), BadRequest)
            head = f"after: job {first.id} would wait for itself: it starts after job {way}"
            assert said.startswith(head)
        free = await it.service.edit(third.id, JobEdit(after=()), uid=ME)
        assert free.after == ()
        await it.reach(third.id, "running")
        it.release(third.id)
        await it.reach(third.id, "succeeded")

    tell(tmp_path / "state", story)


def test_a_job_that_is_to_wait_for_another_job_is_no_longer_held_for_the_failed_one(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        failing = await submit(it, "exit=1", max_restarts=0)
        job = await submit_under(it, QueueTerms(after=(Dependency(job_id=failing.id),)))
        held = await it.reach(job.id, "on_hold")
        assert "that job has failed" in str(held.reason)
        again = await submit_under(it, QueueTerms(hold=True))
        edit = JobEdit(after=(Dependency(job_id=again.id),))
        edited = await it.service.edit(job.id, edit, uid=ME)
        said = f"its dependencies were changed; to let it start: zerotools release {job.id}"
        assert (edited.state, edited.reason) == ("on_hold", said)
        assert (await it.service.release(job.id, uid=ME)).state == "waiting"

    tell(tmp_path / "state", story)


def test_a_job_waits_for_another_time_or_for_none(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        soon = time.time() + 3600
        job = await submit_under(it, QueueTerms(begin=soon))
        later = await it.service.edit(job.id, JobEdit(begin=soon + 60), uid=ME)
        assert (later.state, later.begin) == ("waiting", soon + 60)
        said = await refusal(
            it.service.edit(job.id, JobEdit(begin=soon - 7200), uid=ME), BadRequest
        )
        assert said.startswith("begin: ")
        assert " is in the past; it is " in said
        said = await refusal(it.service.edit(job.id, JobEdit(begin=soon * 3), uid=ME), BadRequest)
        assert "days ahead" in said
        assert (await it.service.edit(job.id, JobEdit(begin=AT_ANY_TIME), uid=ME)).begin is None
        await it.reach(job.id, "running")
        said = await refusal(it.service.edit(job.id, JobEdit(begin=soon), uid=ME), Conflict)
        assert said.startswith(f"job {job.id} is running")
        large = await submit(it, "exit=0", **FIVE)
        said = await refusal(it.service.edit(large.id, JobEdit(begin=soon), uid=ME), Conflict)
        assert "hold it before you set its start time: zerotools hold" in said
        it.release(job.id)

    tell(tmp_path / "state", story)


def test_two_edits_at_once_make_no_ring(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        one, two = [await submit_under(it, QueueTerms(hold=True)) for _ in range(2)]
        both = [
            it.service.edit(job.id, JobEdit(after=(Dependency(job_id=on.id),)), uid=ME)
            for job, on in ((one, two), (two, one))
        ]
        results = await asyncio.gather(*both, return_exceptions=True)
        refused = [str(each) for each in results if isinstance(each, BadRequest)]
        assert len(refused) == 1, results
        assert "would wait for itself" in refused[0]
        after = [it.engine.store.dependencies.of(job.id) for job in (one, two)]
        assert sorted(map(len, after)) == [0, 1]

    tell(tmp_path / "state", story)
