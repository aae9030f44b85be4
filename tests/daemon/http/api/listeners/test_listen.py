from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api.listeners.listen import open_socket


def test_the_socket_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "run" / "api.sock"
    open_socket(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    open_socket(path).close()
    living = open_socket(path)
    with pytest.raises(DaemonRefused, match="another zerotoolsd already listens"):
        open_socket(path)
    living.close()


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(BadRequest, match="exists and is not a socket"):
        open_socket(path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_path_longer_than_an_address(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / ("e" * 120) / "api.sock"
    with serving(FakeService(tmp_path), path):
        assert DaemonClient(path).health()["version"] == "0"
    assert not path.exists()
