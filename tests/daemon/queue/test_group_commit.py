"""Submits that come together are one transaction; each is acknowledged when it is on the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue import group_commit
from zerotoolsd.queue.group_commit import GroupCommit
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.schema import DATABASE
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import NewJob


class CountingStore(Store):
    """How many submits each transaction had."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.groups: list[int] = []

    def submit_all(self, jobs: Sequence[NewJob]) -> list[tuple[JobRow, bool] | Exception]:
        self.groups.append(len(jobs))
        return super().submit_all(jobs)


def new(key: str | None = None, fake: str = "exit=0", **changes: Any) -> NewJob:
    values: dict[str, Any] = {
        "uid": 0,
        "name": "fake",
        "spec": make_job(fake),
        "output_dir": None,
        "default_output": Path("/nowhere"),
        "idempotency_key": key,
        "now": 1.0,
    }
    return NewJob(**{**values, **changes})


def test_those_that_come_together_are_one_transaction(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    group = GroupCommit(store)
    ready = asyncio.Event()

    async def submit(before: asyncio.Event) -> int:
        with group.announce():
            await before.wait()
            return (await group.submit(new()))[0].id

    async def story() -> None:
        submits = [asyncio.create_task(submit(ready)) for _ in range(16)]
        await asyncio.sleep(0)
        ready.set()
        assert await asyncio.gather(*submits) == list(range(1, 17))

    asyncio.run(story())
    assert store.groups == [16]
    assert store.ids("queued") == list(range(1, 17))
    assert [event.job_id for event in store.events(0)] == list(range(1, 17))
    store.close()


def test_one_that_looks_at_a_slow_disk_does_not_hold_up_the_others(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    group = GroupCommit(store)

    async def story() -> None:
        with group.announce():  # it never comes
            assert (await group.submit(new()))[0].id == 1

    asyncio.run(story())
    store.close()


def test_what_is_refused_is_refused_alone(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    group = GroupCommit(store)

    def full() -> None:
        raise Conflict("another job writes there")

    async def story() -> list[Any]:
        with group.announce():
            submits = [
                *(new("a"), new("a"), new("a", "exit=1")),
                *(new(check=full), new(now=float("nan")), new("b")),
            ]
            tasks = [asyncio.create_task(group.submit(each)) for each in submits]
            with group.announce():
                return await asyncio.gather(*tasks, return_exceptions=True)

    first, again, other, taken, unstorable, last = asyncio.run(story())
    assert [first[1], again[1], last[1]] == [True, False, True]
    assert first[0].id == again[0].id
    assert "with a different job file" in str(other)
    assert str(taken) == "another job writes there"
    assert isinstance(unstorable, ValueError)
    assert store.ids("queued") == [first[0].id, last[0].id]
    assert len(store.events(0)) == 2
    store.close()


def test_whoever_is_gone_gets_no_job(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    group = GroupCommit(store)

    async def story() -> None:
        with group.announce(), group.announce():
            gone = asyncio.create_task(group.submit(new()))
            await asyncio.sleep(0)
            gone.cancel()
            await group.submit(new())

    asyncio.run(story())
    assert len(store.ids("queued")) == 1
    store.close()


def test_another_process_that_locks_the_queue_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", 0.001)
    store = Store(tmp_path)
    group = GroupCommit(store)
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)

    async def story() -> None:
        other.execute("BEGIN IMMEDIATE")
        submit = asyncio.create_task(group.submit(new()))
        for _ in range(3):  # the loop goes on meanwhile
            await asyncio.sleep(0)
        assert not submit.done()
        other.execute("ROLLBACK")
        assert (await submit)[0].id == 1
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(group_commit, "BUSY_SECONDS", 0.0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await group.submit(new())

    asyncio.run(story())
    other.close()
    store.close()


def test_nobody_is_told_of_what_the_disk_did_not_take(tmp_path: Path) -> None:
    store = Store(tmp_path)
    group = GroupCommit(store)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def story() -> list[Any]:
        with group.announce():
            tasks = [asyncio.create_task(group.submit(each)) for each in (new(), new(queued=full))]
            with group.announce():
                return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(story())
    assert all("disk is full" in str(each) for each in found)
    assert store.ids("queued") == []
    store.close()
