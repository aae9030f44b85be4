"""A daemon without memory answers 503, loses nothing that it has acknowledged, and goes on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from tests.daemon.http.api.test_hostile import ask
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue import fault_isolation

UID = os.geteuid()


class Starving:
    """Nothing can be had at one place, so many times."""

    def __init__(self, place: str, times: int = 2) -> None:
        self.place, self.left = place, times

    def __call__(self, job_id: int, doing: str) -> None:
        if doing == self.place and self.left:
            self.left -= 1
            raise MemoryError


async def submit(it: Running, **changes: Any) -> int:
    job = make_job("exit=0", **changes)
    return (await it.service.submit(job, uid=UID, idempotency_key=None))[0].id


@pytest.mark.parametrize(
    "place",
    [
        fault_isolation.NEEDING,
        fault_isolation.PLACING,
        fault_isolation.STARTING,
        fault_isolation.ENDING,
    ],
)
def test_no_job_is_held_or_lost_for_it(tmp_path: Path, place: str) -> None:
    starving = Starving(place)

    async def story() -> None:
        async with running(tmp_path / "state", touch=starving) as it:
            first, second = await submit(it), await submit(it, name="second")
            for job_id in (first, second):
                job = await it.reach(job_id, "succeeded", "held", "failed")
                assert (job.state, len(job.attempts)) == ("succeeded", 1)
            assert starving.left == 0

    asyncio.run(story())


class StarvingService(FakeService):
    """Has no memory for lists of jobs, once."""

    starved = False

    async def jobs(self, **wanted: Any) -> list[JobView]:
        if not self.starved:
            self.starved = True
            raise MemoryError
        return await super().jobs(**wanted)


def test_a_request_for_which_there_is_none_is_answered_with_503(tmp_path: Path) -> None:
    client = DaemonClient(tmp_path / "run" / "api.sock", timeout_seconds=10)
    with serving(StarvingService(tmp_path / "state"), client.socket):
        response, answer = ask(client, "GET", "/v1/jobs")
        assert response.status == 503
        assert response.headers["Content-Type"].startswith("application/problem+json")
        assert (answer["code"], answer["status"]) == ("unavailable", 503)
        assert "no memory left" in answer["detail"]
        response, answer = ask(client, "GET", "/v1/jobs")
        assert (response.status, answer["jobs"]) == (200, [])


def test_all_of_a_commit_that_fails_are_told_and_the_next_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as it:
            store, sql = it.engine.store, it.engine.store._sql
            left = ["COMMIT", "ROLLBACK"]

            def starve(statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
                if left and statement == left[0]:
                    del left[0]
                    raise MemoryError
                return sql(statement, values)

            monkeypatch.setattr(store, "_sql", starve)
            submits = [submit(it, name=f"n{number}") for number in range(3)]
            told = await asyncio.gather(*submits, return_exceptions=True)
            assert MemoryError in {type(each) for each in told}
            later = await submit(it, name="later")
            await it.reach(later, "succeeded")
            acknowledged = [each for each in told if isinstance(each, int)]
            for job_id in acknowledged:
                await it.reach(job_id, "succeeded")
            assert len(store.jobs()) == len(acknowledged) + 1

    asyncio.run(story())


def test_a_daemon_that_has_none_for_long_ends_so_that_another_is_started() -> None:
    left = [*["starved"] * (fault_isolation.STARVED_ROUNDS - 1), "fed", *["starved"] * 10]

    async def step() -> float:
        if left.pop(0) == "starved":
            raise MemoryError
        return 7.0

    async def story() -> list[float]:
        loop = fault_isolation.GuardedRounds()
        pauses = [await loop.run_round(step) for _ in range(2 * fault_isolation.STARVED_ROUNDS - 1)]
        with pytest.raises(MemoryError):
            await loop.run_round(step)
        return pauses

    pauses = asyncio.run(story())
    once = [fault_isolation.FAULT_SECONDS] * (fault_isolation.STARVED_ROUNDS - 1)
    assert pauses == [*once, 7.0, *once]
