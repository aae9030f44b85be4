"""One job never takes the queue down: whatever goes wrong with one holds that job alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import zerotools
from tests.daemon import dispatchers
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, leave_attempt, running
from tests.daemon.made_attempts import is_alive, own_token
from tests.daemon.waiting import wait_async
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts import attempt_watcher
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.http.api.responses import json_text
from zerotoolsd.interface.api_types import CleanRequest
from zerotoolsd.queue import fault_isolation
from zerotoolsd.supervisor.durable_files import read_json, write_json

CONFIG = replace(dispatchers.CONFIG, retry=RetryConfig(first_seconds=0.01))
UID = os.geteuid()


class Fault:
    """Job 1 cannot be touched at one place, until the fault is mended."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.mended = False

    def __call__(self, job_id: int, doing: str) -> None:
        if (job_id, doing) == (1, self.place) and not self.mended:
            raise UnicodeEncodeError("utf-8", "ck-\udce9", 3, 4, "surrogates not allowed")


async def submit(it: Running, job: JobSpec) -> int:
    view, _ = await it.service.submit(job, uid=UID, idempotency_key=None)
    return view.id


async def the_others_go_on(it: Running) -> None:
    """A job that comes later runs to its end, though job 1 is held."""
    other = await submit(it, make_job("exit=0"))
    held = await it.reach(1, "held")
    assert "surrogates not allowed" in str(held.reason)
    log = it.engine.jobs_dir / "1" / fault_isolation.HELD_LOG
    assert str(log) in str(held.reason)
    assert "Traceback" in log.read_text()
    await it.reach(other, "succeeded")
    assert (await it.service.job(1)).state == "held"


@pytest.mark.parametrize(
    "place", [fault_isolation.NEEDING, fault_isolation.PLACING, fault_isolation.STARTING]
)
def test_a_fault_before_the_start_holds_the_job_and_a_resume_starts_it(
    tmp_path: Path, place: str
) -> None:
    fault = Fault(place)

    async def story() -> None:
        async with running(tmp_path / "state", touch=fault) as it:
            await submit(it, make_job("exit=0"))
            await the_others_go_on(it)
            fault.mended = True
            await it.service.resume(1, uid=UID)
            assert len((await it.reach(1, "succeeded")).attempts) == 1

    asyncio.run(story())


@pytest.mark.parametrize("place", [fault_isolation.TIMING, fault_isolation.COUNTING])
def test_a_fault_beside_a_running_attempt_leaves_it_alone_and_records_its_end(
    tmp_path: Path, place: str
) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(place)) as it:
            await submit(it, make_job("release"))
            await it.reach(1, "running", "held")  # both placed at once, nothing counts its ranks
            await the_others_go_on(it)
            it.release(1)
            assert (await it.reach(1, "succeeded")).attempts[0].state == "ended"

    asyncio.run(story())


def test_the_attempt_of_a_held_job_is_watched_by_the_next_daemon_too(tmp_path: Path) -> None:
    fault = Fault(fault_isolation.TIMING)

    async def story() -> None:
        async with running(tmp_path / "state", touch=fault, leave=True) as it:
            await submit(it, make_job("release"))
            await it.reach(1, "held")
        fault.mended = True
        async with running(tmp_path / "state", touch=fault) as it:
            await it.reach(await submit(it, make_job("exit=0")), "succeeded")
            assert (await it.service.job(1)).state == "held"
            await it.service.resume(1, uid=UID)
            await it.reach(1, "running")
            it.release(1)
            assert len((await it.reach(1, "succeeded")).attempts) == 1

    asyncio.run(story())


@pytest.mark.parametrize("place", [fault_isolation.ENDING, attempt_watcher.SETTLING])
def test_a_fault_at_the_end_holds_the_job_and_loses_nothing(tmp_path: Path, place: str) -> None:
    fault = Fault(place)

    async def story() -> None:
        async with running(tmp_path / "state", touch=fault) as it:
            await submit(it, make_job("steps=3 exit=0"))
            await the_others_go_on(it)
            fault.mended = True
            await it.service.resume(1, uid=UID)
            ended = await it.reach(1, "succeeded")
            assert [attempt.steps_done for attempt in ended.attempts] == [3]

    asyncio.run(story())


def test_a_job_whose_end_can_never_be_recorded_can_be_cancelled(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(fault_isolation.ENDING)) as it:
            await submit(it, make_job("steps=3 exit=0"))
            await the_others_go_on(it)
            await it.service.cancel(1, uid=UID)
            ended = await it.reach(1, "cancelled")
            assert "the attempt could not be watched: recording its end failed" in str(ended.reason)
            assert ended.attempts[0].state == "ended"

    asyncio.run(story())


def test_p5_a_fault_while_a_job_is_asked_to_stop_ends_its_processes_all_the_same(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(fault_isolation.STOPPING)) as it:
            await submit(it, make_job("release"))
            await it.reach(1, "running")
            path = it.service.run_dir(1, 1) / "run.json"

            async def ranks() -> list[int]:
                record = read_json(path) or {}
                return [rank["pid"] for rank in record.get("ranks", ())]

            pids = await wait_async(ranks, "the ranks")
            await it.service.cancel(1, uid=UID)
            assert "processes were killed" in str((await it.reach(1, "cancelled")).reason)

            async def gone() -> bool:
                return not any(map(is_alive, pids))

            await wait_async(gone, "the ranks to end")
            await it.reach(await submit(it, make_job("exit=0")), "succeeded")

    asyncio.run(story())


def test_a_fault_after_a_crash_holds_the_job_and_keeps_its_restarts(tmp_path: Path) -> None:
    fault = Fault(fault_isolation.RETRYING)

    async def story() -> None:
        async with running(tmp_path / "state", config=CONFIG, touch=fault) as it:
            await submit(it, make_job("attempt=1:exit=9 exit=0"))
            await the_others_go_on(it)
            fault.mended = True
            await it.service.resume(1, uid=UID)
            assert len((await it.reach(1, "succeeded")).attempts) == 2

    asyncio.run(story())


def test_a_fault_while_an_attempt_is_taken_up_holds_its_job(tmp_path: Path) -> None:
    fault = Fault(fault_isolation.TAKING_UP)
    run = leave_attempt(tmp_path / "state", make_job("exit=0"))
    write_json(run / "exit.json", {"token": own_token(), "outcome": "finished", "cause": "done"})

    async def story() -> None:
        async with running(tmp_path / "state", touch=fault, leave=True) as it:
            await the_others_go_on(it)
        async with running(tmp_path / "state", touch=fault) as it:
            assert (await it.service.job(1)).state == "held"
            fault.mended = True
            await it.service.resume(1, uid=UID)
            await it.reach(1, "succeeded")

    asyncio.run(story())


def test_a_fault_beside_a_gpu_that_is_not_free_yet_holds_nobody_else_up(tmp_path: Path) -> None:
    gpu = make_job("", device="cuda", gpus=1, ranks=None)
    run = leave_attempt(tmp_path / "state", gpu, gpu_uuids=("GPU-fake-0",))
    stuck = [{"pid": os.getpid(), "start_ticks": 1}]
    record = {"token": own_token(), "outcome": "bad_job", "cause": "it broke", "unkillable": stuck}
    write_json(run / "exit.json", record)

    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(fault_isolation.RELEASING)) as it:
            await it.reach(1, "failed")
            await it.reach(await submit(it, make_job("exit=0")), "succeeded")
            assert [lease.job_id for lease in it.engine.store.leases()] == [1]

    asyncio.run(story())


DAMAGES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "attempt's GPUs": lambda db: db.execute("UPDATE attempt SET gpu_uuids = '{' WHERE job_id = 1"),
    "attempt's result": lambda db: db.execute("UPDATE attempt SET result = '[' WHERE job_id = 1"),
    "no attempt's start": lambda db: db.execute(
        "UPDATE attempt SET started = 'noon' WHERE job_id = 1"
    ),
    "the job itself": lambda db: db.execute("UPDATE job SET spec = X'FF' WHERE id = 1"),
    "no attempt": lambda db: db.execute("DELETE FROM attempt WHERE job_id = 1"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_row_is_listed_and_cancelled_and_nobody_else_s_matter(
    tmp_path: Path, damage: Callable[[sqlite3.Connection], object]
) -> None:
    leave_attempt(tmp_path / "state", make_job("exit=0", max_restarts=0, time_limit="1h"))
    with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as db, db:
        damage(db)

    async def story() -> None:
        async with running(tmp_path / "state", leave=True) as it:
            await it.reach(await submit(it, make_job("exit=0")), "succeeded")
            listed = await it.service.jobs()
            assert [job.id for job in listed] == [2, 1]
            if listed[1].state not in ("held", "failed"):
                await it.reach(1, "held", "failed")
            if (await it.service.job(1)).state == "held":
                await it.service.cancel(1, uid=UID)
                await it.reach(1, "cancelled")

    asyncio.run(story())


def test_a_queued_job_that_cannot_be_read_is_held_with_the_reason_and_never_fails(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(fault_isolation.NEEDING)) as it:
            await submit(it, make_job("exit=0"))
            await it.reach(1, "held")
        with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as db, db:
            db.execute(
                "UPDATE job SET state = 'queued', spec_version = '9.0',"
                " spec = json_set(spec, '$.later', 7),"
                " spec_given = json_set(spec_given, '$.later', 7)"
            )
        async with running(tmp_path / "state") as it:
            held = await it.reach(1, "held")
            assert held.reason == (
                "job 1 was queued by zerotools 9.0, but this is zerotools "
                f"{zerotools.__version__}: later is a key that this version does not know; "
                "start zerotoolsd 9.0, or cancel the job"
            )
            assert held.world_size == 2
            with pytest.raises(Unsupported, match=r"start zerotoolsd 9\.0"):
                await it.service.resume(1, uid=UID)
            await it.service.cancel(1, uid=UID)
            await it.reach(1, "cancelled")
            with pytest.raises(Unsupported, match=r"; start zerotoolsd 9\.0$"):
                await it.service.resume(1, uid=UID)

    asyncio.run(story())


def test_a_record_in_which_a_rank_wrote_nonsense_is_shown_as_far_as_it_makes_sense(
    tmp_path: Path,
) -> None:
    run = leave_attempt(tmp_path / "state", make_job("", max_restarts=0))
    odd = {
        "outcome": "\ud800",
        "cause": ["\udce9", "\0"],
        "ended": float("nan"),
        "ran_seconds": -1e308,
        "checkpoint": {"step": 2**62, "path": "/\udce9"},
        "closing": {"why": {"a": 1}},
        "progress": {"step": "x" * 100_000, "loss": 10**3000},
        "exit_code": "0",
        "signal": {},
        "peak_host_bytes": 10**40,
        "steps_done": 10**40,
    }
    write_json(run / "exit.json", {"token": own_token(), **odd})

    async def story() -> None:
        async with running(tmp_path / "state", leave=True) as it:
            ended = await it.reach(1, "failed")
            (attempt,) = ended.attempts
            assert (attempt.exit_code, attempt.signal, attempt.steps_done) == (None, None, 0)
            assert isinstance(attempt.cause, str)
            newest = ended.latest_checkpoint or {}
            assert (newest["step"], newest["path"]) == (2**62, "/\udce9")
            assert json_text(ended.to_json()).isascii()
            answer = await it.service.clean(CleanRequest(jobs=(2**80, 1)), uid=UID, of=None)
            assert [job.id for job in answer.jobs] == [1]

    asyncio.run(story())


def test_a_record_that_is_too_large_to_keep_is_not_read(tmp_path: Path) -> None:
    run = leave_attempt(tmp_path / "state", make_job("", max_restarts=0))
    write_json(
        run / "exit.json", {"token": own_token(), "outcome": "finished", "cause": "x" * 5_000_000}
    )

    async def story() -> None:
        async with running(tmp_path / "state", leave=True) as it:
            assert "is larger than 4 MiB" in str((await it.reach(1, "failed")).reason)

    asyncio.run(story())


def test_the_log_of_a_job_that_was_held_goes_with_its_records(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", touch=Fault(fault_isolation.NEEDING)) as it:
            await submit(it, make_job("exit=0"))
            await it.reach(1, "held")
            await it.service.cancel(1, uid=UID)
            await it.service.clean(CleanRequest(jobs=(1,)), uid=UID, of=None)
            assert await it.service.jobs() == []
            assert not (it.engine.jobs_dir / "1").exists()

    asyncio.run(story())
