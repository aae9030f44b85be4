"""Who starts supervisors, by the configuration and by who started the daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotoolsd.attempts.backends.choose_systemd_or_child import select_backend

UNIT = {"SYSTEMD_EXEC_PID": str(os.getpid()), "NOTIFY_SOCKET": "/run/systemd/notify"}
OF_USER = {**UNIT, "MANAGERPID": "7", "XDG_RUNTIME_DIR": "/run/user/1000"}


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "systemd-run"
    program.touch(mode=0o755)
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("by", "environment", "uid", "by_systemd", "of_user"),
    [
        ("auto", UNIT, 0, True, False),
        ("auto", OF_USER, 1000, True, True),
        ("auto", OF_USER, 0, True, True),
        ("auto", {"NOTIFY_SOCKET": "@n"}, 0, True, False),  # before version 248
        ("auto", {}, 0, False, False),
        # A shell that a unit started.
        ("auto", {**UNIT, "SYSTEMD_EXEC_PID": "1"}, 0, False, False),
        # A service of the system that runs as somebody else may not ask the system's systemd.
        ("auto", UNIT, 1000, False, False),
        ("child", UNIT, 0, False, False),
        ("auto", {**UNIT, "ZEROTOOLS_LAUNCH": "child"}, 0, False, False),
        ("systemd", {}, 0, True, False),
        ("systemd", {}, 1000, True, True),
    ],
)
def test_who_starts_supervisors(
    path: dict[str, str],
    by: str,
    environment: dict[str, str],
    uid: int,
    by_systemd: bool,
    of_user: bool,
) -> None:
    way = select_backend(by, {**path, **environment}, uid=uid, booted=lambda: True)
    assert (way.program is not None) == by_systemd
    assert way.of_user == of_user
    assert way.may_be_child == (by != "systemd")


def test_a_unit_that_is_closed_to_jobs_never_has_them_as_children(path: dict[str, str]) -> None:
    way = select_backend(
        "auto", {**path, "ZEROTOOLS_LAUNCH": "systemd"}, uid=0, booted=lambda: True
    )
    assert way.program is not None
    assert not way.may_be_child


def test_without_systemd_they_are_children_and_the_reason_is_told(path: dict[str, str]) -> None:
    environment = {**path, **UNIT}
    way = select_backend("auto", environment, uid=0, booted=lambda: False)
    assert (way.program, way.why) == (
        None,
        "children of the daemon: systemd is not the init system of this machine",
    )
    way = select_backend("auto", {**environment, "PATH": "/nowhere"}, uid=0, booted=lambda: True)
    assert way.why == "children of the daemon: systemd-run is not on PATH"


@pytest.mark.parametrize(
    ("by", "value", "sentence"),
    [
        ("systemd", "auto", "launch.by = systemd: systemd is not the init system of this"),
        ("auto", "sometimes", 'ZEROTOOLS_LAUNCH = "sometimes": must be auto, systemd or child'),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(by: str, value: str, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        select_backend(by, {"ZEROTOOLS_LAUNCH": value}, uid=0, booted=lambda: False)
