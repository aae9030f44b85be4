"""What is said of directories, sockets and locks."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.hung_disks import hung_disk
from zerotools.jobs.doctor import directories_and_locks
from zerotools.jobs.doctor.directories_and_locks import (
    OLD_SECONDS,
    check_free_space,
    check_locks,
    check_state,
    result_within,
)
from zerotools.jobs.doctor.finding import DoctorFinding

GIB = 2**30


def disk(free: int, *, inodes: int = 10**6, left: int = 10**6, flag: int = 0) -> Any:
    return SimpleNamespace(f_bavail=free, f_frsize=1, f_files=inodes, f_favail=left, f_flag=flag)


@pytest.mark.parametrize(
    ("found", "level", "said"),
    [
        (disk(20 * GIB), "ok", "20.0 GiB free"),
        (disk(20 * GIB, inodes=0, left=0), "ok", "20.0 GiB free"),
        (disk(5 * GIB), "warning", "5.0 GiB free"),
        (disk(GIB // 2), "problem", "0.5 GiB free"),
        (disk(20 * GIB, left=10), "problem", "10 inodes free"),
        (disk(20 * GIB, left=10**4), "warning", "10000 of 1000000 inodes"),
        (disk(20 * GIB, flag=os.ST_RDONLY), "problem", "read-only"),
    ],
)
def test_room_and_inodes(tmp_path: Path, found: Any, level: str, said: str) -> None:
    places = {"the queue": tmp_path / "not/yet", "home": tmp_path}
    [finding] = check_free_space(places, lambda path: found)
    assert (finding.what, finding.level) == ("disk of the queue", level)
    assert said in finding.found


def test_a_file_system_that_fails_or_hangs(tmp_path: Path) -> None:
    def fail(path: Path) -> Any:
        raise OSError(5, "Input/output error")

    [found] = check_free_space({"x": tmp_path}, fail)
    assert (found.level, found.found) == ("problem", f"{tmp_path}: Input/output error")
    hung = Event()
    assert result_within(0.01, hung.wait) is None
    hung.set()


def state(tmp_path: Path, mode: int = 0o700, uid: int | None = None) -> dict[str, DoctorFinding]:
    tmp_path.chmod(mode)
    uid = os.geteuid() if uid is None else uid
    return {each.what: each for each in check_state(tmp_path, tmp_path / "api.sock", uid)}


def test_a_state_that_is_not_this_user_s_alone(tmp_path: Path) -> None:
    assert state(tmp_path)["state"].level == "ok"
    assert state(tmp_path, 0o755)["state"].level == "warning"
    assert state(tmp_path, 0o777)["state"].level == "problem"
    assert "belongs to uid" in state(tmp_path, uid=os.geteuid() + 1)["state"].found


def test_a_daemon_that_listens_one_that_does_not_and_what_it_left(tmp_path: Path) -> None:
    assert state(tmp_path)["daemon"].level == "warning"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "api.sock"))
        listening.listen()
        assert state(tmp_path)["daemon"].level == "ok"
    found = state(tmp_path)["daemon"]
    assert (found.level, "left-over socket" in found.found) == ("problem", True)
    (tmp_path / "zerotools.db.new").touch()
    assert state(tmp_path)["left over"].level == "warning"


def test_locks_of_compilers_that_are_old(tmp_path: Path) -> None:
    lock = tmp_path / ".cache/torch_extensions/py311/cpu_adam/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    made = lock.stat().st_mtime
    here = {"HOME": str(tmp_path)}
    assert not list(check_locks(here, made + OLD_SECONDS - 1))
    [found] = check_locks(here, made + 3600)
    assert found.found == f"{lock} is 60 minutes old"


def test_a_directory_that_never_answers_is_told_and_keeps_no_command_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories_and_locks, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(directories_and_locks, "CONNECT_SECONDS", 0.1)
    with hung_disk(tmp_path / "disk") as hung:
        if hung is None:
            pytest.skip("no file system may be mounted here")
        hung.hang()
        before = threading.active_count()
        place, home = hung.door / "state", hung.door / "home"
        [found] = check_state(place, place / "api.sock", 0)
        assert found.what == "state"
        assert "the daemon's jobs continue" in str(found.do)
        [found] = check_locks({"HOME": str(home)})
        assert found.found == f"{home} did not answer within 0.2 s"
        [found] = check_free_space({"the state directory": place})
        assert "hangs" in str(found.do)
        assert threading.active_count() == before
