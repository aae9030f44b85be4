from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.core.errors import DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api.request_limits import ConcurrencyLimit, RateLimit


def test_a_user_has_so_many_at_once_and_then_so_many_a_second() -> None:
    limit = RateLimit(per_second=2, at_once=3)
    assert [limit.wait_for(7, 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_for(8, 0.0) == 0  # another user
    assert limit.wait_for(7, 0.5) == 0
    assert limit.wait_for(7, 0.5) == 0.5
    assert [limit.wait_for(7, 100.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limit = RateLimit(per_second=1, at_once=1)
    assert limit.wait_for(7, 10.0) == 0
    assert limit.wait_for(7, 5.0) == 1


def test_whoever_asks_too_often_is_told(tmp_path: Path) -> None:
    rate = RateLimit(per_second=0.001, at_once=2)
    with serving(FakeService(tmp_path), tmp_path / "api.sock", rate=rate):
        client = DaemonClient(tmp_path / "api.sock")
        client.health()
        client.health()
        with pytest.raises(DaemonRefused, match=r"more than 0\.001 requests a second") as refused:
            client.health()
        assert (refused.value.status, refused.value.code) == (429, "rate_limited")


def test_one_users_submits_wait_for_each_other_and_for_nobody_else() -> None:
    async def story() -> None:
        lock, go = ConcurrencyLimit(2), asyncio.Event()
        inside: list[int] = []

        async def submit(uid: int) -> None:
            async with lock.slot(uid):
                inside.append(uid)
                await go.wait()
                inside.remove(uid)

        annas = [asyncio.create_task(submit(7)) for _ in range(5)]
        bobs = asyncio.create_task(submit(8))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(inside) == [7, 7, 8]
        annas[4].cancel()
        go.set()
        await asyncio.gather(*annas, bobs, return_exceptions=True)
        assert (inside, lock._slots, lock._inside) == ([], {}, {})

    asyncio.run(story())
