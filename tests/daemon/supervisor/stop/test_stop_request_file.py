"""A stop is asked for durably, also where nothing else can be written any more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.small_disks import SmallDisk
from tests.daemon.waiting import wait_async
from zerotoolsd.interface.api_types import Unavailable
from zerotoolsd.supervisor.attempt_plan import OUTSIDE
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.stop.stop_request_file import (
    RequestedStop,
    RequestReader,
    reserve_request,
    write_request,
)

UID = os.geteuid()


async def runs(it: Running, fake: str) -> Path:
    job, _ = await it.service.submit(make_job(fake, ranks=1), uid=UID, idempotency_key=None)
    await it.reach(job.id, "running")
    run_dir = it.service.run_dir(job.id, 1)

    async def waits() -> bool:
        return (run_dir / "waiting-0").exists()

    await wait_async(waits, "the rank to run")
    return run_dir


def test_a_request_takes_the_place_of_its_room_and_may_be_repeated(tmp_path: Path) -> None:
    reserve_request(tmp_path)
    reserve_request(tmp_path)
    inode = (tmp_path / ".request.json.room").stat().st_ino
    (tmp_path / ".stop.room").unlink()
    for reason in ("time limit", "time limit", "cancel"):
        write_request(tmp_path, reason)
        assert read_json(tmp_path / "request.json") == {"reason": reason}
        if reason == "time limit":
            assert (tmp_path / "request.json").stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["request.json"]


def test_a_job_that_fills_the_disk_can_be_cancelled_and_nothing_is_queued_meanwhile(
    small_disk: SmallDisk,
) -> None:
    async def story() -> None:
        async with running(small_disk.path / "state") as it:
            run_dir = await runs(it, "release stop")
            (run_dir / "release").touch()

            async def trains() -> bool:
                return bool((await it.service.job(1)).progress)

            await wait_async(trains, "the rank to train")
            small_disk.fill()
            with pytest.raises(Unavailable, match=r"has 0\.0 MiB free: No space left"):
                await it.service.submit(make_job("exit=0"), uid=UID, idempotency_key=None)
            await it.service.cancel(1, uid=UID)
            assert read_json(run_dir / "request.json") == {"reason": "cancel"}
            job = await it.reach(1, "cancelled")
            small_disk.free()
            assert "did not stop within" not in str(job.reason)  # its rank was told

    asyncio.run(story())


def test_a_request_that_cannot_be_written_is_tried_until_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as it:
            run_dir = await runs(it, "release stop")
            (run_dir / ".request.json.room").unlink()
            (run_dir / "release").touch()
            (run_dir / "request.json").mkdir()  # whatever is in the way

            await it.service.cancel(1, uid=UID)
            assert (run_dir / "request.json").is_dir()
            assert not it.engine._watcher.request_again()
            (run_dir / "request.json").rmdir()
            assert it.engine._watcher.request_again()
            assert read_json(run_dir / "request.json") == {"reason": "cancel"}
            await it.reach(1, "cancelled")

    asyncio.run(story())


def test_a_cancel_takes_the_place_of_a_reason_after_which_a_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = RequestReader(default_grace=60.0)
    assert reader.poll(signalled=False) is None
    write_request(tmp_path, "preempt")
    assert reader.poll(signalled=True) == RequestedStop("preempt", 60.0, is_first=True)
    assert reader.poll(signalled=True) is None
    write_request(tmp_path, "cancel")
    assert reader.poll(signalled=True) == RequestedStop("cancel", None)
    write_request(tmp_path, "relieve", 2.0)
    assert reader.poll(signalled=True) == RequestedStop(None, 2.0)
    assert reader.reason == "cancel"


def test_a_signal_without_a_request_gets_the_reason_that_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = RequestReader(default_grace=60.0)
    assert reader.poll(signalled=True) == RequestedStop(OUTSIDE, 60.0, is_first=True)
    write_request(tmp_path, "time limit")
    assert reader.poll(signalled=True) == RequestedStop("time limit", None)
    assert reader.reason == "time limit"
