"""systemd: the units are valid, and the daemon speaks its protocol."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from harness.started import run
from zerotoolsd import systemd

UNITS = Path(__file__).parents[2] / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    ("manager", "unit"),
    [
        ("--system", "zerotoolsd.service"),
        ("--system", "zerotoolsd.socket"),
        ("--user", "user/zerotoolsd.service"),
    ],
)
def test_systemd_accepts_the_units(tmp_path: Path, manager: str, unit: str) -> None:
    done = run(
        ["systemd-analyze", manager, "verify", str(UNITS / unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_readiness_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        assert systemd.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert manager.recv(100) == b"READY=1"


def test_without_a_manager_nothing_is_told(tmp_path: Path) -> None:
    assert not systemd.notify("READY=1", {})
    assert not systemd.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})


def test_the_watchdog_is_fed_twice_per_interval() -> None:
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "30000000"}) == 15
    assert systemd.watchdog_seconds({}) is None
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}) is None


def test_only_a_socket_meant_for_this_process_is_taken() -> None:
    assert systemd.inherited_socket({}) is None
    assert systemd.inherited_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    own = str(os.getpid())
    assert systemd.inherited_socket({"LISTEN_PID": own, "LISTEN_FDS": "0"}) is None
