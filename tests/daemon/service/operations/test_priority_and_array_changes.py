"""What users change of jobs in the queue."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.invariants import broken
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.service.test_answer_requests import ME, Story, refusal, submit, tell
from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import MOST_MEMBERS
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.interface import event_loop_slice
from zerotoolsd.interface.api_types import ArrayRequest, Conflict, Forbidden, JobView, Unavailable
from zerotoolsd.interface.start_conditions import Dependency, JobEdit, QueueTerms
from zerotoolsd.queue import store as queue_store
from zerotoolsd.queue.lifecycle import Hold
from zerotoolsd.service.operations import priority_and_array_changes

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
        assert said == f"job {later[0].id} has succeeded, so it cannot get another priority"

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
            f"it may start only after job {failing.id} succeeds, but that job has failed; to start "
            f"it anyway: zerotools release {spoiled.id}"
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


def queue_arrays(state: Path, story: Story) -> None:
    async def told() -> None:
        config = replace(CONFIG, limits=LimitsConfig(cpu_ranks=1))
        async with running(state, config=config) as it:
            await story(it)

    asyncio.run(told())


async def array(it: Running, fakes: list[str], *, hold: bool = False) -> list[JobView]:
    members = [
        (make_job(fake, ranks=1, name=f"a-{index}"), f"label {index}")
        for index, fake in enumerate(fakes)
    ]
    return await it.service.submit_array(
        members, uid=ME, idempotency_key=None, terms=QueueTerms(hold=hold)
    )


async def states(it: Running, jobs: list[JobView]) -> list[str]:
    return [(await it.service.job(job.id)).state for job in jobs]


async def kinds(it: Running, job_id: int) -> list[str]:
    return [each.kind for each in await it.service.events(0, 0) if each.job_id == job_id]


def test_the_one_that_runs_saves_and_those_that_wait_are_held(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        stops = "attempt=1:stop attempt=2:release exit=0"
        jobs = await array(it, [stops, "exit=0", "exit=0"])
        await it.reach(jobs[0].id, "running")
        found = await it.service.change_array(jobs[2].id, ArrayRequest(do="hold"), uid=ME)
        assert ([view.id for view in found.jobs], found.kept) == ([job.id for job in jobs], ())
        await it.reach(jobs[0].id, "paused")
        assert await states(it, jobs) == ["paused", "on_hold", "on_hold"]
        await it.service.change_array(jobs[0].id, ArrayRequest(do="priority", priority=3), uid=ME)
        assert [(await it.service.job(job.id)).priority for job in jobs] == [3, 3, 3]
        await it.service.release(jobs[0].id, uid=ME)
        await it.reach(jobs[0].id, "running")
        it.release(jobs[0].id, attempt=2)
        await it.reach(jobs[0].id, "succeeded")
        released = await it.service.change_array(jobs[0].id, ArrayRequest(do="release"), uid=ME)
        assert len(released.jobs) == 2  # the one that is over is in neither
        for job in jobs[1:]:
            await it.reach(job.id, "succeeded")
        said = await refusal(
            it.service.change_array(jobs[0].id, ArrayRequest(do="cancel"), uid=ME), Conflict
        )
        assert said == "all 3 jobs of the array are over"

    queue_arrays(tmp_path / "state", story)


def test_a_cancel_ends_the_one_that_runs_and_all_that_wait(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["stop", "exit=0", "exit=0"])
        await it.reach(jobs[0].id, "running")
        await it.service.change_array(jobs[1].id, ArrayRequest(do="cancel"), uid=ME)
        assert (await states(it, jobs))[1:] == ["cancelled", "cancelled"]
        await it.reach(jobs[0].id, "cancelled")
        assert await kinds(it, jobs[2].id) == ["submit", "cancel"]

    queue_arrays(tmp_path / "state", story)
    assert broken(tmp_path / "state", [1, 2, 3]) == []


def test_where_writing_fails_half_way_nothing_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=0"] * 3, hold=True)
        written, append = 0, queue_store.Store._append

        def fails(store: queue_store.Store, now: float, *values: object) -> int:
            nonlocal written
            written += 1
            if written == 3:
                raise sqlite3.OperationalError("disk I/O error")
            return append(store, now, *values)

        monkeypatch.setattr(priority_and_array_changes, "STEP_SECONDS", 60.0)  # one transaction
        monkeypatch.setattr(queue_store.Store, "_append", fails)
        request = ArrayRequest(do="release")
        said = await refusal(it.service.change_array(jobs[0].id, request, uid=ME), Unavailable)
        assert "writing the queue failed: disk I/O error" in said
        monkeypatch.undo()
        assert await states(it, jobs) == ["on_hold"] * 3
        assert await kinds(it, jobs[0].id) == ["submit"]
        await it.service.change_array(jobs[0].id, request, uid=ME)
        for job in jobs:
            await it.reach(job.id, "succeeded")

    queue_arrays(tmp_path / "state", story)
    assert broken(tmp_path / "state", [1, 2, 3]) == []


def test_an_array_pauses_and_goes_on(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["attempt=1:stop attempt=2:exit=0", "exit=0"])
        await it.reach(jobs[0].id, "running")
        request = ArrayRequest(do="pause", lose_steps=True)
        await it.service.change_array(jobs[0].id, request, uid=ME)
        assert (await states(it, jobs))[1] == "paused"
        await it.reach(jobs[0].id, "paused")
        await it.service.change_array(jobs[0].id, ArrayRequest(do="unpause"), uid=ME)
        for job in jobs:
            await it.reach(job.id, "succeeded")

    queue_arrays(tmp_path / "state", story)


def test_an_array_is_run_again_as_a_new_one_when_all_of_it_is_over(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=9", "release exit=0"])
        said = await refusal(it.service.retry_array(jobs[0].id, uid=ME), Conflict)
        assert "is not over" in said
        await it.reach(jobs[0].id, "failed", "waiting_retry")
        await it.service.change_array(jobs[0].id, ArrayRequest(do="cancel"), uid=ME)
        for job in jobs:
            await it.reach(job.id, "cancelled", "failed")
        place = tmp_path / "again"
        again = await it.service.retry_array(jobs[1].id, uid=ME, output_dir=str(place))
        assert [view.output_dir for view in again] == [str(place / "0"), str(place / "1")]
        assert [dict(view.array or {}) for view in again] == [
            {"id": again[0].id, "index": 0, "size": 2, "label": "label 0"},
            {"id": again[0].id, "index": 1, "size": 2, "label": "label 1"},
        ]
        await it.service.change_array(again[0].id, ArrayRequest(do="cancel"), uid=ME)

    queue_arrays(tmp_path / "state", story)


def test_of_an_array_those_that_have_not_succeeded_continue_as_a_new_one(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=9", "exit=0", "exit=9"], hold=True)
        await it.service.change_array(jobs[0].id, ArrayRequest(do="priority", priority=3), uid=ME)
        await it.service.change_array(jobs[0].id, ArrayRequest(do="release"), uid=ME)
        await it.reach(jobs[1].id, "succeeded")
        for job in (jobs[0], jobs[2]):
            await it.reach(job.id, "failed", "waiting_retry")
        await it.service.change_array(jobs[0].id, ArrayRequest(do="cancel"), uid=ME)
        for job in (jobs[0], jobs[2]):
            await it.reach(job.id, "cancelled", "failed")
        again = await it.service.retry_array(jobs[1].id, uid=ME, from_start=False)
        assert [(dict(view.array or {})["label"], view.priority) for view in again] == [
            ("label 0", 3),
            ("label 2", 3),
        ]
        assert [view.output_dir for view in again] == [
            (await it.service.job(job.id)).output_dir for job in (jobs[0], jobs[2])
        ]
        await it.service.change_array(again[0].id, ArrayRequest(do="cancel"), uid=ME)

    queue_arrays(tmp_path / "state", story)


@pytest.mark.parametrize("from_start", [True, False])
def test_each_keeps_what_was_set_for_it_alone(tmp_path: Path, from_start: bool) -> None:
    begin = time.time() + 1e6

    async def story(it: Running) -> None:
        runs = await submit(it, "release exit=0", ranks=1)
        jobs = await array(it, ["exit=0"] * 3, hold=True)
        await it.service.set_priority(jobs[0].id, 4, uid=ME)
        await it.service.edit(jobs[1].id, JobEdit(begin=begin), uid=ME)
        after = (Dependency(job_id=runs.id),)
        await it.service.edit(jobs[2].id, JobEdit(after=after), uid=ME)
        await it.service.change_array(jobs[0].id, ArrayRequest(do="cancel"), uid=ME)
        again = await it.service.retry_array(jobs[0].id, uid=ME, from_start=from_start)
        waits = ({"job": runs.id, "condition": "ok", "state": "running"},)
        assert [(view.priority, view.begin) for view in again] == [(4, None), (0, begin), (0, None)]
        assert [view.after for view in again] == [(), (), waits]
        await it.service.change_array(again[0].id, ArrayRequest(do="cancel"), uid=ME)
        await it.reach(runs.id, "running")
        it.release(runs.id)

    queue_arrays(tmp_path / "state", story)


def test_others_are_answered_while_it_is_seen_which_of_an_array_have_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop_slice, "STEP_SECONDS", 0.0)

    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=0"] * 4)
        for job in jobs:
            await it.reach(job.id, "succeeded")
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        said = await refusal(it.service.retry_array(jobs[0].id, uid=ME, from_start=False), Conflict)
        task.cancel()
        assert said.startswith("all 4 jobs of the array have succeeded")
        assert turns >= 2 * len(jobs), "each is read, and each is looked at"

    queue_arrays(tmp_path / "state", story)


def test_a_release_of_an_array_releases_all_whoever_held_them(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=0"] * 3, hold=True)
        row = it.engine.store.job(jobs[1].id)
        it.engine.transitions.apply(row, Hold(why="its record was odd"))
        assert await states(it, jobs) == ["on_hold", "held", "on_hold"]
        await it.service.change_array(jobs[0].id, ArrayRequest(do="release"), uid=ME)
        for job in jobs:
            await it.reach(job.id, "succeeded")

    queue_arrays(tmp_path / "state", story)
    assert broken(tmp_path / "state", [1, 2, 3]) == []


def test_a_job_of_no_array_and_a_priority_above_the_class(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        single = await submit(it, "exit=0", ranks=1)
        request = ArrayRequest(do="hold")
        said = await refusal(it.service.change_array(single.id, request, uid=ME), Conflict)
        assert said == f"job {single.id} is not part of an array"
        jobs = await array(it, ["exit=0"] * 2, hold=True)
        other = ME + 1
        it.engine.priority_classes._classes = {"*": (-10, 0)}
        high = ArrayRequest(do="priority", priority=5)
        asked = it.service.change_array(jobs[0].id, high, uid=other)
        assert "priority = 5" in await refusal(asked, Forbidden)
        assert [(await it.service.job(job.id)).priority for job in jobs] == [0, 0]

    queue_arrays(tmp_path / "state", story)


def test_a_thousand_are_cancelled_by_few_commits_and_others_are_answered_between(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        jobs = await array(it, ["exit=0"] * MOST_MEMBERS, hold=True)
        commits, turns = list[float](), 0
        it.engine.store.on_commit = commits.append

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        found = await it.service.change_array(jobs[0].id, ArrayRequest(do="cancel"), uid=ME)
        task.cancel()
        assert len(found.jobs) == MOST_MEMBERS
        assert len(commits) == MOST_MEMBERS / priority_and_array_changes.AT_ONCE
        assert turns > len(commits)


def test_where_writing_fails_between_two_commits_it_is_said_how_many_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(it: Running) -> None:
        monkeypatch.setattr(priority_and_array_changes, "AT_ONCE", 2)
        monkeypatch.setattr(priority_and_array_changes, "STEP_SECONDS", 60.0)
        jobs = await array(it, ["exit=0"] * 5, hold=True)
        written, append = 0, queue_store.Store._append

        def fails(store: queue_store.Store, now: float, *values: object) -> int:
            nonlocal written
            written += 1
            if written == 4:
                raise sqlite3.OperationalError("disk I/O error")
            return append(store, now, *values)

        monkeypatch.setattr(queue_store.Store, "_append", fails)
        request = ArrayRequest(do="cancel")
        said = await refusal(it.service.change_array(jobs[0].id, request, uid=ME), Unavailable)
        assert said.endswith("writing the queue failed: disk I/O error; 2 of 5 were changed")
        monkeypatch.undo()
        assert await states(it, jobs) == ["cancelled"] * 2 + ["on_hold"] * 3
        assert len((await it.service.change_array(jobs[0].id, request, uid=ME)).jobs) == 3

    queue_arrays(tmp_path / "state", story)
