from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.core.errors import DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api.listeners.request_rate import RateLimit


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
