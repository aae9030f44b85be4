"""What ranks are told of the checkpoints that other jobs name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.runs.test_find_job_checkpoints import make
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.deletable_checkpoints import DIRECTORY, NeededCheckpoint, read_needed
from zerotoolsd.dispatch import checkpoint_pins
from zerotoolsd.dispatch.checkpoint_pins import CheckpointPins
from zerotoolsd.queue.store import Store
from zerotoolsd.trainer.rank.rank_settings import needed_by_others

UID = os.geteuid()
WIDE: dict[str, Any] = {"ranks": 8, "train": {"steps": 50, "batch_size": 8}}
"""A job that waits for the one before it."""


def told(state: Path) -> list[NeededCheckpoint]:
    return read_needed(state / DIRECTORY)


async def submit(it: Running, **changes: Any) -> int:
    job: JobSpec = make_job("exit=0", **changes)
    return (await it.service.submit(job, uid=UID, idempotency_key=None))[0].id


def test_it_is_told_from_before_the_look_until_the_job_is_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    checkpoint = make(tmp_path / "out", 40)
    (tmp_path / "link").symlink_to(checkpoint)

    async def story() -> None:
        async with running(state) as it:
            blocker = await submit(it, **WIDE, env={"FAKE": "hang"})
            assert told(state) == []  # it names none
            first = await submit(it, **WIDE, resume_from=str(checkpoint))
            second = await submit(it, **WIDE, resume_from=str(tmp_path / "link"))
            named = [
                NeededCheckpoint(job, "resume_from", str(checkpoint)) for job in (first, second)
            ]
            assert told(state) == named
            for path in (checkpoint.with_name("step-00000041"), tmp_path / "step-1"):
                with pytest.raises(BadRequest, match="resume_from"):
                    await submit(it, resume_from=str(path))
            assert told(state) == named  # of those that were refused nothing is left
            await it.service.cancel(first, uid=UID)
            it.engine.needed.settle()
            assert told(state) == named[1:]
            await it.service.cancel(blocker, uid=UID)
            await it.reach(second, "succeeded", "failed")
            it.engine.needed.settle()
            assert told(state) == []

    asyncio.run(story())


def test_ranks_read_it_where_the_daemon_writes_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "jobs" / "3" / "attempt-1"
    run_dir.mkdir(parents=True)
    assert needed_by_others(run_dir).resolve() == tmp_path / DIRECTORY


def test_the_next_daemon_tells_it_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    checkpoint = make(tmp_path / "out", 40)

    async def story() -> None:
        async with running(state) as it:
            await submit(it, **WIDE, env={"FAKE": "hang"})
            await submit(it, **WIDE, resume_from=str(checkpoint))

    asyncio.run(story())
    for path in (state / DIRECTORY).iterdir():
        path.unlink()
    (state / DIRECTORY / "coming-0").write_text('{"job": 0, "named": [["a", "/b"]]}')
    (state / DIRECTORY / "77").write_text('{"job": 77, "named": [["a", "/b"]]}')
    store = Store(state)
    CheckpointPins(state, store).begin()
    store.close()
    assert told(state) == [NeededCheckpoint(2, "resume_from", str(checkpoint))]


def test_a_directory_that_its_user_filled_is_cleared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_pins, "MOST_FORGOTTEN", 3)
    for number in range(8):
        (tmp_path / f"{number}").mkdir() if number % 2 else (tmp_path / f"{number}").touch()
    checkpoint_pins._forget(tmp_path, {"0"}, coming=False, most=0)
    assert len(list(tmp_path.iterdir())) == 8
    for _ in range(8):
        checkpoint_pins._forget(tmp_path, {"0"}, coming=False, most=8)
    assert (tmp_path / "0").exists()
    assert len(list(tmp_path.iterdir())) < 8
