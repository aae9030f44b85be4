"""Whose jobs a daemon runs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.daemon.users.other_users import user_of
from zerotoolsd.users.account import Account, UnknownAccount
from zerotoolsd.users.served_users import NEEDED, NotServed, ServedUsers, why_alone

ANNA = user_of(1001).account


def find(uid: int) -> Account:
    if uid != ANNA.uid:
        raise UnknownAccount(f"uid {uid} is not a user of this machine")
    return ANNA


def status(path: Path, capabilities: int) -> Path:
    path.write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
    return path


def test_root_runs_each_job_as_its_user() -> None:
    users = ServedUsers(own=0, alone=None, limits={"processes": 64}, find=find)
    found = users.of(1001)
    assert found is not None
    assert (found.account, found.processes) == (ANNA, 64)
    assert users.of(0) is None
    with pytest.raises(UnknownAccount):
        users.of(1002)
    left = users.for_files(1002)
    assert left is not None
    assert (left.account.uid, left.account.groups) == (1002, ())


def test_root_that_cannot_become_others_never_runs_their_jobs_itself() -> None:
    users = ServedUsers(own=0, alone="it lacks CAP_SETUID", find=find)
    for ask in (users.of, users.for_files):
        with pytest.raises(
            NotServed, match="the daemon cannot run processes as uid 1001: it lacks CAP_SETUID"
        ):
            ask(1001)


def test_a_daemon_of_a_user_runs_all_as_itself() -> None:
    users = ServedUsers(own=1000, alone="it is not root", find=find)
    assert users.of(1000) is users.of(0) is users.of(1001) is None


def test_it_takes_root_its_capabilities_and_an_open_installation(tmp_path: Path) -> None:
    whole = sum(1 << number for number in NEEDED.values())
    there = (Path("/bin/sh"),)

    def filtered() -> None:
        raise PermissionError(errno.EPERM, "the file rights of uid 1")

    assert why_alone(0, status(tmp_path / "a", whole), there, lambda: None) is None
    assert "does not let it change to other users" in str(
        why_alone(0, tmp_path / "a", there, filtered)
    )
    assert "only a daemon that runs as root" in str(why_alone(1000, tmp_path / "a", there))
    lacking = status(tmp_path / "b", whole & ~(1 << NEEDED["SETUID"]))
    assert why_alone(0, lacking, there) == "the daemon lacks CAP_SETUID"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").touch()
    why = str(why_alone(0, tmp_path / "a", (closed / "python",), lambda: None))
    # A directory above it may be closed too, as pytest's are.
    assert any(
        f"other users are not allowed to read {place}, " in why
        for place in (closed, *closed.parents)
    )
