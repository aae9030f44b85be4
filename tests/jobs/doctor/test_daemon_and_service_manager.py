"""What `doctor` says of the daemon as a service."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.doctor.daemon_and_service_manager import (
    LINGERING,
    check_fork_servers,
    check_service,
    manager_group,
)
from zerotools.jobs.doctor.finding import OK, DoctorFinding

CHILD = {"by": "child", "why": "children of the daemon: systemd did not start the daemon"}
USER = {"by": "user-systemd", "why": "started by systemd"}


CHILD_FORK_SERVERS = {"by": "child", "why": "children of the daemon"}
SERVER = {
    "kind": "0badcafe",
    "pid": 4711,
    "python": "/env/bin/python",
    "ready": True,
    "memory_bytes": 340 * 2**20,
    "idle_seconds": 61.4,
    "jobs": 1,
}


def levels(launch: dict[str, str] | None, root: Path) -> list[tuple[str, str]]:
    return [(each.what, each.level) for each in check_service(launch, os.geteuid(), root)]


def test_without_a_daemon_or_from_an_older_one_nothing_is_said(tmp_path: Path) -> None:
    assert levels(None, tmp_path) == []


def test_jobs_in_units_of_their_own_are_well(tmp_path: Path) -> None:
    launch = {"by": "systemd", "why": "started by systemd"}
    (found,) = check_service(launch, 0, tmp_path)
    assert found.found == "are started by systemd, each attempt in its own systemd unit"
    assert found.level == "ok"


@pytest.mark.parametrize(("booted", "level"), [(True, "warning"), (False, "ok")])
def test_children_are_worth_a_word_where_systemd_runs_the_machine(
    tmp_path: Path, booted: bool, level: str
) -> None:
    if booted:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert levels(CHILD, tmp_path) == [("processes of jobs", level)]


@pytest.mark.parametrize(("by", "level"), [("systemd", "problem"), ("child", "warning")])
def test_a_systemd_that_starts_nothing_is_named(tmp_path: Path, by: str, level: str) -> None:
    launch = {"by": by, "why": "", "trouble": "systemd-run: Access denied"}
    (found,) = check_service(launch, 0, tmp_path)
    assert found.level == level
    assert "(systemd-run: Access denied)" in found.found


def test_whoever_does_not_linger_loses_jobs_at_log_out(tmp_path: Path) -> None:
    assert levels(USER, tmp_path) == [("processes of jobs", "ok"), ("log-out", "warning")]
    (tmp_path / LINGERING).mkdir(parents=True)
    (tmp_path / LINGERING / pwd.getpwuid(os.geteuid()).pw_name).touch()
    assert levels(USER, tmp_path) == [("processes of jobs", "ok")]


def test_the_group_of_whoever_makes_the_units() -> None:
    assert manager_group({"by": "systemd"}, 7) == "/"
    assert manager_group(USER, 7) == "/user.slice/user-7.slice/user@7.service"
    assert manager_group(CHILD, 7) is manager_group(None, 7) is None


def found(launch: dict[str, Any] | None = None, **warm: Any) -> list[DoctorFinding]:
    told = {"enabled": True, "trouble": None, "servers": [], **warm}
    return list(check_fork_servers(told, CHILD_FORK_SERVERS if launch is None else launch))


def test_nothing_is_said_of_what_is_off_or_unknown() -> None:
    assert found(enabled=False) == []
    assert list(check_fork_servers(None, CHILD_FORK_SERVERS)) == []


def test_each_server_is_shown_with_its_memory() -> None:
    (none,) = found()
    assert none.found == "is on; no fork server runs, and the next job starts one"
    one, other = found(servers=[SERVER, {**SERVER, "ready": False, "memory_bytes": None}])
    assert one.level == other.level == OK
    held = "340 MiB of memory, 1 job started, idle for 61 s"
    assert one.found == f"pid 4711 for /env/bin/python: {held}"
    assert other.found == "pid 4711 for /env/bin/python still imports its packages"


def test_what_failed_and_what_cannot_be_are_warnings() -> None:
    (failed,) = found(trouble="importing started threads")
    assert failed.level != OK
    assert failed.found == "the last fork server that failed: importing started threads"
    (useless,) = found({"by": "systemd", "why": "started by systemd"})
    assert "every job starts cold" in useless.found
    assert "[launch]" in str(useless.do)
