"""A queue that is older than the run directories: what ended stays so, no number comes twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.invariants import broken
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadFile
from zerotools.jobs.client import queue_backup
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.schema import set_aside
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable_files import read_json

UID = os.geteuid()
DATABASE = queue_backup.DATABASE
NARROW = replace(CONFIG, limits=LimitsConfig(cpu_ranks=2))
Story = Callable[[Running], Coroutine[Any, Any, None]]


async def submit(it: Running, fake: str = "exit=0", **changes: Any) -> int:
    job = make_job(fake, ranks=1, **changes)
    return (await it.service.submit(job, uid=UID, idempotency_key=None))[0].id


def run(state: Path, story: Story, *, rebuild: bool = False, leave: bool = False) -> None:
    async def whole() -> None:
        async with running(state, config=NARROW, rebuild=rebuild, leave=leave) as it:
            await story(it)

    asyncio.run(whole())


async def everything(it: Running) -> None:
    """Jobs 1 to 5: done, failed, cancelled, running, waiting for job 4's ranks."""
    await it.reach(await submit(it, "steps=3 save=3 exit=0", name="done"), "succeeded")
    await it.reach(await submit(it, "exit=9", name="broken", max_restarts=0), "failed")
    stopped = await submit(it, "stop", name="stopped")
    await it.reach(stopped, "running")
    await it.service.cancel(stopped, uid=UID)
    await it.reach(stopped, "cancelled")
    await it.reach(await submit(it, "release exit=0", name="runs"), "running")

    async def trains() -> bool:
        return (it.engine.jobs_dir / "4/attempt-1/waiting-0").exists()

    await wait_async(trains, "job 4 to run")
    wide = make_job("exit=0", ranks=2, name="waits")
    await it.service.submit(wide, uid=UID, idempotency_key=None)


def forget(state: Path) -> None:
    for path in state.glob(f"{DATABASE}*"):
        path.unlink()


def test_a_queue_that_is_lost_is_made_of_the_run_directories(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run(state, everything, leave=True)
    forget(state)
    with pytest.raises(BadFile, match="zerotoolsd --rebuild"):
        Store(state)

    async def story(it: Running) -> None:
        assert (await it.reach(1, "succeeded")).name == "done"
        assert (await it.service.job(1)).attempts[0].steps_done == 3
        broken_job = await it.service.job(2)
        assert broken_job.state == "held"
        assert "exited with 9" in str(broken_job.reason)
        assert "the queue was older than the run directories" in str(broken_job.reason)
        await it.reach(3, "cancelled")
        assert (await it.service.job(4)).state == "running"
        assert await submit(it) == 5  # the fifth had no directory
        it.release(4)
        await it.reach(4, "succeeded")
        for number in range(1, 5):
            assert len((await it.service.job(number)).attempts) == 1
        assert broken(state) == []

    run(state, story, rebuild=True)


def test_an_older_queue_takes_in_what_came_of_its_jobs_and_of_later_ones(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"

    async def before(it: Running) -> None:
        await it.reach(await submit(it, "release exit=0"), "running")
        for _ in range(2):
            wide = make_job("steps=2 exit=0", ranks=2)
            await it.service.submit(wide, uid=UID, idempotency_key=None)
        queue_backup.back_up_queue(state, copy)
        it.release(1)
        await it.reach(3, "succeeded")
        await it.reach(await submit(it, "steps=5 exit=0"), "succeeded")

    run(state, before)
    shutil.copyfile(copy, state / DATABASE)
    with pytest.raises(BadFile, match=r"has the number 5, but change 16 .*--rebuild"):
        Store(state)
    (state / queue_backup.LAST_CHANGE).unlink()  # nobody knows that it is older but the directories

    async def after(it: Running) -> None:
        for number, steps in ((1, None), (2, 2), (3, 2), (4, 5)):
            job = await it.reach(number, "succeeded")
            assert [one.steps_done or None for one in job.attempts] == [steps]
        assert await submit(it) == 5
        assert broken(state) == []

    run(state, after)


def test_a_restored_backup_runs_nothing_by_itself(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"

    async def before(it: Running) -> None:
        await submit(it, "release exit=0")
        for name in ("cancelled since", "still waits"):
            wide = make_job("exit=0", ranks=2, name=name)
            await it.service.submit(wide, uid=UID, idempotency_key=None)
        await it.reach(1, "running")
        queue_backup.back_up_queue(state, copy)
        await it.service.cancel(2, uid=UID)
        it.release(1)
        await it.reach(3, "succeeded")

    run(state, before)
    held, kept = queue_backup.restore_queue(copy, state)
    assert (held.jobs, held.unfinished) == (3, 3)
    assert [Path(path).name[:20] for path in kept] == ["zerotools.db.before-"] * len(kept)

    async def after(it: Running) -> None:
        await it.reach(1, "succeeded")
        await it.reach(3, "succeeded")
        job = await it.service.job(2)
        assert (job.state, job.attempts) == ("held", ())
        await it.service.resume(2, uid=UID)
        await it.reach(2, "succeeded")
        assert not (state / queue_backup.RESTORED).exists()
        assert broken(state) == []

    run(state, after)


def test_released_jobs_run_though_others_began_since_the_backup(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.db"

    async def before(it: Running) -> None:
        await submit(it, "release exit=0")
        await it.service.submit(make_job("exit=0", ranks=2), uid=UID, idempotency_key=None)
        await it.reach(1, "running")
        queue_backup.back_up_queue(state, copy)
        await it.service.cancel(2, uid=UID)
        it.release(1)
        await it.reach(await submit(it, "exit=9", max_restarts=0), "failed")

    run(state, before)
    queue_backup.restore_queue(copy, state, release=True)

    async def after(it: Running) -> None:
        await it.reach(2, "succeeded")
        assert (await it.service.job(3)).state == "held"  # it ended: it is not run again

    run(state, after)


def test_a_lost_log_of_the_queue_is_noticed_though_no_job_had_begun(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    Store(state).close()
    empty = (state / DATABASE).read_bytes()

    async def before(it: Running) -> None:
        wide = make_job("exit=0", ranks=2)
        (await it.service.submit(wide, uid=UID, idempotency_key=None))

    run(state, before)
    (state / DATABASE).write_bytes(empty)
    with pytest.raises(BadFile, match=r"zerotools\.db-wal is missing"):
        Store(state)
    store = Store(state, rebuild=True)
    store.close()
    Store(state).close()  # it was said once, and decided


def test_numbers_of_directories_are_not_given_again(tmp_path: Path) -> None:
    (tmp_path / "state/jobs/41/output").mkdir(parents=True)

    async def story(it: Running) -> None:
        assert await submit(it) == 42
        assert (await it.reach(42, "succeeded")).reason is None

    run(tmp_path / "state", story, rebuild=True)


def of_a_queue_with_two_waiting(state: Path, backup: Path) -> None:
    """A copy of it with one job, which runs; two more that never began came after it."""

    async def before(it: Running) -> None:
        await it.reach(await submit(it, "release exit=0"), "running")
        queue_backup.back_up_queue(state, backup)
        for _ in range(2):
            await it.service.submit(make_job("exit=0", ranks=2), uid=UID, idempotency_key=None)

    run(state, before)


@pytest.mark.parametrize("lost", ["restored", "restored, mark lost", "older", "gone", "damaged"])
def test_numbers_of_jobs_that_never_began_are_not_given_again(tmp_path: Path, lost: str) -> None:
    state, backup = tmp_path / "state", tmp_path / "copy.db"
    of_a_queue_with_two_waiting(state, backup)
    if lost.startswith("restored"):
        if lost != "restored":
            (state / queue_backup.LAST_CHANGE).unlink()
        queue_backup.restore_queue(backup, state)
    elif lost == "older":
        shutil.copyfile(backup, state / DATABASE)
    elif lost == "gone":
        (state / DATABASE).unlink()
    else:
        assert len(set_aside(state, "20260101-000000")) == 2

    async def after(it: Running) -> None:
        assert await submit(it) == 4

    run(state, after, rebuild=not lost.startswith("restored"))


@pytest.mark.parametrize("damage", ["directory", "no attempt", "unreadable record"])
def test_a_waiting_job_of_which_nobody_knows_whether_it_ran_is_held(
    tmp_path: Path, damage: str
) -> None:
    state, backup = tmp_path / "state", tmp_path / "copy.db"
    of_a_queue_with_two_waiting(state, backup)
    own = state / "jobs/2"
    if damage == "directory":
        own.write_text("no directory")
    elif damage == "no attempt":
        own.mkdir()
        (own / "attempt-1").write_text("no directory")
    else:
        (own / "attempt-1/attempt.json").mkdir(parents=True)

    async def after(it: Running) -> None:
        job = await it.reach(2, "held")
        assert "its attempts cannot be read (" in str(job.reason)
        assert "zerotools release or zerotools cancel" in str(job.reason)
        await it.service.cancel(1, uid=UID)
        await it.reach(3, "succeeded")  # the others go on
        if damage != "directory":
            shutil.rmtree(own)
            await it.service.resume(2, uid=UID)
            await it.reach(2, "succeeded")

    run(state, after)


def test_what_ran_is_not_run_by_the_resume_of_a_job_that_could_not_be_read_at_the_start(
    tmp_path: Path,
) -> None:
    """As without descriptors."""
    state, backup = tmp_path / "state", tmp_path / "copy.db"
    plan = state / "jobs/1/attempt-1/attempt.json"

    async def before(it: Running) -> None:
        await submit(it)
        queue_backup.back_up_queue(state, backup)
        await it.reach(1, "succeeded")

    run(state, before)
    queue_backup.restore_queue(backup, state, release=True)
    with closing(sqlite3.connect(state / DATABASE)) as db, db:  # as if it had not been begun
        db.execute("DELETE FROM attempt")
        db.execute("DELETE FROM lease")
        db.execute("UPDATE job SET state = 'queued'")
    plan.rename(plan.with_name("kept"))
    plan.mkdir()

    async def after(it: Running) -> None:
        await it.reach(1, "held")
        plan.rmdir()
        plan.with_name("kept").rename(plan)
        await it.service.resume(1, uid=UID)
        assert len((await it.reach(1, "succeeded")).attempts) == 1

    run(state, after)
    assert not (state / "jobs/1/attempt-2").exists()


def test_what_a_clean_removed_does_not_come_back(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def before(it: Running) -> None:
        await it.reach(await submit(it), "succeeded")

    run(state, before)
    with closing(sqlite3.connect(state / DATABASE)) as db, db:
        db.execute("DELETE FROM attempt")
        db.execute("DELETE FROM job")

    async def after(it: Running) -> None:
        assert await it.service.jobs() == []
        assert await submit(it) == 2

    run(state, after)


@pytest.mark.parametrize("damage", ["attempt.json", "spec.json", "exit.json"])
def test_directories_that_cannot_be_read_stop_nobody(tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state"

    async def before(it: Running) -> None:
        await it.reach(await submit(it), "succeeded")
        await it.reach(await submit(it), "succeeded")

    run(state, before)
    forget(state)
    place = state / "jobs/1/attempt-1" / damage
    place.write_bytes(b'{"token": [\xff')

    async def after(it: Running) -> None:
        await it.reach(2, "succeeded")
        jobs = {job.id: job.state for job in await it.service.jobs()}
        assert jobs == ({1: "held", 2: "succeeded"} if damage == "exit.json" else {2: "succeeded"})
        assert await submit(it) == 3

    run(state, after, rebuild=True)


def test_what_others_put_among_the_run_directories_stops_nobody(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def before(it: Running) -> None:
        await it.reach(await submit(it), "succeeded")

    run(state, before)
    forget(state)
    jobs = state / "jobs"
    shutil.copytree(jobs / "1/attempt-1", jobs / "1/attempt-2")
    (jobs / "2/attempt-1").mkdir(parents=True)
    strange = {"token": "a" * 32, "job_id": 2, "gpu_uuids": 5}
    (jobs / "2/attempt-1/attempt.json").write_text(json.dumps(strange))
    (jobs / "3").write_text("no directory")

    async def after(it: Running) -> None:
        assert len((await it.reach(1, "succeeded")).attempts) == 1
        assert [job.id for job in await it.service.jobs()] == [1]
        assert await submit(it) == 4

    run(state, after, rebuild=True)


def test_a_rebuilt_job_is_the_job_that_was_submitted(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def before(it: Running) -> None:
        await it.reach(await submit(it, "exit=0", name="mine", time_limit="2h"), "succeeded")

    run(state, before)
    was = read_json(state / "jobs/1/attempt-1/spec.json")
    forget(state)

    async def after(it: Running) -> None:
        job = it.engine.store.job(1)
        assert json.loads(job.spec_text) == was
        assert (job.uid, job.name, job.reading.problems) == (UID, "mine", ())

    run(state, after, rebuild=True)
