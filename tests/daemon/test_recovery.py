"""What a daemon finds when it starts, and what it does where that goes wrong."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt, running
from tests.daemon.made_attempts import make_attempt, own_token, progress_of, supervise
from tests.daemon.waiting import wait_async, wait_for
from zerotoolsd.interface.api_types import Unavailable
from zerotoolsd.interface.start_conditions import QueueTerms
from zerotoolsd.queue.rows import LAUNCHING
from zerotoolsd.supervisor.attempt_plan import EXIT_USED
from zerotoolsd.supervisor.durable_files import write_json


def test_p2_an_attempt_that_cannot_be_prepared_again_is_fenced_first(tmp_path: Path) -> None:
    job = make_job("exit=0", max_restarts=0)
    run = leave_attempt(tmp_path / "state", job, attempt_state=LAUNCHING)
    run.rmdir()
    make_attempt(run, "release")
    (run / "spec.json").unlink()
    (run / "spec.json").mkdir()

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            ended = await it.reach(1, "failed")
            assert "could not be started: " in str(ended.reason)
            assert ": Is a directory" in str(ended.reason)

    asyncio.run(story())
    # The supervisor that the daemon before this one had spawned comes late.
    late = supervise(run)
    assert late.wait(timeout=10) == EXIT_USED


def test_no_attempt_starts_while_the_state_directory_is_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        state, uid = tmp_path / "state", os.geteuid()
        async with running(state) as it:
            spec = make_job("exit=0", max_restarts=0)
            terms = QueueTerms(hold=True)
            job, _ = await it.service.submit(spec, uid=uid, idempotency_key=None, terms=terms)
            state.rename(tmp_path / "moved")
            with pytest.raises(Unavailable, match=r"zerotools\.db was moved or removed"):
                await it.service.submit(spec, uid=uid, idempotency_key=None)
            await it.service.release(job.id, uid=uid)

            async def waits() -> bool:
                return "moved or removed" in str((await it.service.job(job.id)).reason)

            await wait_async(waits, "the reason")
            assert not state.exists()
            (tmp_path / "moved").rename(state)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_p5_a_cancel_reaches_a_job_whose_directory_could_not_be_read_at_first(
    tmp_path: Path,
) -> None:
    run = leave_attempt(tmp_path / "state", make_job("stop"))
    with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as store, store:
        store.execute("UPDATE job SET state = 'stopping'")
    run.rmdir()
    run.symlink_to(run.name)
    real = make_attempt(tmp_path / "state" / "real", "stop")
    supervisor = supervise(real)
    wait_for(lambda: len(progress_of(real)) == 2, "both ranks to train")

    async def story() -> None:
        async with running(tmp_path / "state") as it:

            async def said() -> str | None:
                return (await it.service.job(1)).reason

            await wait_async(said, "job 1 to be held")
            run.unlink()
            run.symlink_to(real)
            assert (await it.reach(1, "cancelled")).attempts[0].steps_done == 7

    asyncio.run(story())
    assert supervisor.wait(timeout=10) == 0


def test_a_run_directory_that_cannot_be_read_holds_its_job_and_no_other(tmp_path: Path) -> None:
    first = leave_attempt(tmp_path / "state", make_job("exit=0", max_restarts=0))
    second = leave_attempt(tmp_path / "state", make_job("exit=0", max_restarts=0), token="u" * 32)
    away = first.rename(first.with_name("away"))
    first.symlink_to(first.name)
    write_json(second / "exit.json", {"token": "u" * 32, "outcome": "finished", "cause": "done"})

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            await it.reach(2, "succeeded")

            async def said() -> str | None:
                return (await it.service.job(1)).reason

            why = await wait_async(said, "job 1 to be held")
            assert "Too many levels of symbolic links" in str(why)
            assert (await it.service.job(1)).state == "running"
            first.unlink()
            write_json(
                away / "exit.json", {"token": own_token(), "outcome": "finished", "cause": "done"}
            )
            away.rename(first)
            assert (await it.reach(1, "succeeded")).reason is None

    asyncio.run(story())
