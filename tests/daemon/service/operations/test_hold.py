"""Hold and release, and the older pause and unpause: in a daemon whose ranks pretend."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.service.operations.test_priority_and_array_changes import FIVE, submit_under
from tests.daemon.service.test_answer_requests import ME, Story, refusal, submit
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.start_conditions import QueueTerms
from zerotoolsd.queue.tables.preemption_table import PREEMPT
from zerotoolsd.users.account import user_name

SAVES = "attempt=1:stop attempt=2:release exit=0"
ONE = {"ranks": 1}


def tell(state: Path, story: Story, cpu_ranks: int = 1) -> None:
    """A daemon of so many CPU ranks, of which each job here takes one."""

    async def told() -> None:
        config = replace(CONFIG, limits=LimitsConfig(cpu_ranks=cpu_ranks))
        async with running(state, config=config) as it:
            await story(it)

    asyncio.run(told())


async def steps(it: Running, job_id: int, attempt: int = 1) -> None:
    """Until its first step was reported."""
    progress = it.service.run_dir(job_id, attempt) / "progress.jsonl"

    async def reported() -> bool:
        return progress.exists() and '"step": 7' in progress.read_text()

    await wait_async(reported, "step 7")


def test_a_job_saves_gives_back_what_it_has_and_goes_on_in_its_old_place(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, SAVES, **ONE)
        await it.reach(job.id, "running")
        behind = await submit(it, "release exit=0", **ONE)
        last = await submit(it, "exit=0", **ONE)
        await steps(it, job.id)
        asked = await it.service.hold(job.id, uid=ME)
        assert (asked.state, asked.reason) == ("pausing", f"held by {user_name(ME)}")
        await it.service.hold(job.id, uid=ME)  # twice is harmless
        paused = await it.reach(job.id, "paused")
        said = f"held by {user_name(ME)}; saved at step 7 and stopped, 0 steps lost"
        assert paused.reason == said
        assert paused.latest_checkpoint is not None
        assert paused.latest_checkpoint["step"] == 7
        await it.reach(behind.id, "running")
        assert (await it.service.hold(job.id, uid=ME)).reason == said
        (row,) = it.engine.store.yields.of(job.id)
        assert (row.purpose, row.outcome, row.saved_step, row.steps_lost) == (
            *("pause", "stopped", 7, 0),
        )
        assert (await it.service.release(job.id, uid=ME)).state == "queued"
        it.release(behind.id)
        went_on = await it.reach(job.id, "running")
        assert went_on.attempts[1].resumed_from == paused.latest_checkpoint["path"]
        it.release(job.id, attempt=2)
        await it.reach(last.id, "succeeded")
        ended = await it.reach(job.id, "succeeded")
        assert len(ended.attempts) == 2
        assert it.engine.store.job(job.id).standing.restarts_used == 0
        kinds = [each.kind for each in await it.service.events(0, 0) if each.job_id == job.id]
        assert kinds == [
            *("submit", "admit", "started", "pause", "stopped", "unpaused"),
            *("admit", "started", "finished"),
        ]

    tell(tmp_path / "state", story)


def test_a_job_is_held_when_it_is_submitted_and_released(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit_under(it, QueueTerms(hold=True))
        assert (job.state, job.reason) == (
            "on_hold",
            f"held by {user_name(ME)} when it was submitted",
        )
        said = await refusal(it.service.resume(job.id, uid=ME), Conflict)
        assert said.endswith(f"is held; let it continue: zerotools release {job.id}")
        assert (await it.service.release(job.id, uid=ME)).state == "queued"
        await it.reach(job.id, "running")
        said = await refusal(it.service.release(job.id, uid=ME), Conflict)
        assert said == f"job {job.id} is not held: it is running"
        other = await submit(it, "exit=0", **FIVE, max_restarts=0)
        await it.service.cancel(job.id, uid=ME)
        await it.reach(other.id, "succeeded")
        kinds = [event.kind for event in await it.service.events(0, 0) if event.job_id == job.id]
        assert kinds[:3] == ["submit", "released", "admit"]

    tell(tmp_path / "state", story, cpu_ranks=8)


def test_a_job_that_waits_is_paused_at_once_and_waits_on_then(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        first = await submit(it, "release exit=0", **ONE)
        await it.reach(first.id, "running")
        queued = await submit(it, "exit=0", **ONE)
        assert (await it.service.pause(queued.id, uid=ME)).state == "paused"
        terms = QueueTerms(begin=time.time() + 1e6)
        waiting, _ = await it.service.submit(
            make_job("exit=0", **ONE), uid=ME, idempotency_key=None, terms=terms
        )
        assert (await it.service.pause(waiting.id, uid=ME)).state == "paused"
        assert (await it.service.unpause(waiting.id, uid=ME)).state == "waiting"
        await it.service.pause(waiting.id, uid=ME)
        assert (await it.service.cancel(waiting.id, uid=ME)).state == "cancelled"
        assert (await it.service.set_priority(queued.id, 2, uid=ME)).priority == 2
        said = await refusal(it.service.resume(queued.id, uid=ME), Conflict)
        assert said == f"job {queued.id} is held; let it continue: zerotools release {queued.id}"
        assert (await it.service.hold(queued.id, uid=ME)).state == "paused"
        it.release(first.id)
        await it.reach(first.id, "succeeded")
        assert (await it.service.job(queued.id)).state == "paused"
        await it.service.release(queued.id, uid=ME)
        await it.reach(queued.id, "succeeded")
        said = await refusal(it.service.pause(queued.id, uid=ME), Conflict)
        assert said == f"job {queued.id} has succeeded, so it cannot be held"
        said = await refusal(it.service.unpause(first.id, uid=ME), Conflict)
        assert said == (
            f"job {first.id} is not paused: it has succeeded; "
            f"to run it again: zerotools retry {first.id}"
        )

    tell(tmp_path / "state", story)


def test_a_cancel_an_unpause_and_a_start_that_comes_before(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        loads = await submit(it, "release exit=0", **ONE)
        cancelled = await submit(it, "stop", **ONE)
        unpaused = await submit(it, "attempt=1:stop attempt=2:exit=0", **ONE)
        for job in (loads, cancelled, unpaused):
            await it.reach(job.id, "running")
        for job in (cancelled, unpaused):
            await steps(it, job.id)
        for job in (loads, cancelled, unpaused):
            await it.service.pause(job.id, uid=ME)
        await it.service.cancel(cancelled.id, uid=ME)
        assert (await it.service.unpause(unpaused.id, uid=ME)).state == "yielding"
        await it.reach(cancelled.id, "cancelled")
        await it.reach(unpaused.id, "succeeded")
        paused = await it.reach(loads.id, "paused")
        said = f"held by {user_name(ME)}; stopped before training began, 0 steps lost"
        assert paused.reason == said

    tell(tmp_path / "state", story, cpu_ranks=3)


def test_a_program_that_is_not_known_to_save_is_paused_only_where_that_is_meant(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        tree = {"command": ["/bin/sleep", "600"], "directory": str(tmp_path), "launcher": "plain"}
        spec = job_from_dict(
            {"engine": "script", "device": "cpu", "ranks": 1, "script": tree}, source="job"
        )
        job, _ = await it.service.submit(spec, uid=ME, idempotency_key=None)
        await it.reach(job.id, "running")
        said = await refusal(it.service.pause(job.id, uid=ME), Conflict)
        assert said.startswith(f"job {job.id} would not continue at the same step: its program has")
        assert said.endswith(f"zerotools hold --lose-steps {job.id}")
        await it.service.pause(job.id, uid=ME, lose_steps=True)
        paused = await it.reach(job.id, "paused")
        assert str(paused.reason).startswith(f"held by {user_name(ME)}; ")
        assert it.engine.store.job(job.id).standing.restarts_used == 0

    tell(tmp_path / "state", story)


def test_a_job_that_makes_room_is_queued_again_and_says_for_whom(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, SAVES, **ONE)
        await it.reach(job.id, "running")
        await steps(it, job.id)
        urgent, _ = await it.service.submit(
            make_job("release exit=0", **ONE),
            uid=ME,
            idempotency_key=None,
            terms=QueueTerms(priority=3),
        )
        row = it.engine.store.job(job.id)
        why = f"stops for job {urgent.id}"
        it.engine.yield_job(row, PREEMPT, why, for_job=urgent.id)
        await it.reach(urgent.id, "running")
        waits = await it.reach(job.id, "queued")
        assert str(waits.reason).startswith(
            f"{why}; saved at step 7 and stopped, 0 steps lost; needs 1 CPU rank"
        )
        it.release(urgent.id)
        await it.reach(job.id, "running")
        it.release(job.id, attempt=2)
        await it.reach(job.id, "succeeded")

    tell(tmp_path / "state", story)


def test_a_daemon_that_ends_before_it_has_asked_asks_when_it_is_back(tmp_path: Path) -> None:
    async def paused() -> None:
        state = tmp_path / "state"
        async with running(state, leave=True) as it:
            job = await submit(it, SAVES, **ONE)
            await it.reach(job.id, "running")
            await steps(it, job.id)
            row = it.engine.store.job(job.id)
            it.engine._watcher.request_stop = lambda attempt, reason: None  # type: ignore[method-assign]
            it.engine.yield_job(row, "pause", "paused by uid 7")
            assert not (it.service.run_dir(job.id, 1) / "request.json").exists()
        async with running(state) as it:
            found = await it.reach(job.id, "paused")
            assert found.reason == "paused by uid 7; saved at step 7 and stopped, 0 steps lost"

    asyncio.run(paused())
