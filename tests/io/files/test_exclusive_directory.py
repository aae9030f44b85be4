from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import OwnDirectory, copy_access, new_text_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_looks_into_it_before_it_is_opened_up(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with closing(OwnDirectory(tmp_path / "a")) as own:
        assert mode(own.path) == 0o700
        (own.path / ".zerotools-mode").mkdir()  # of a run that was killed here
        own.open_up()
        assert mode(own.path) == mode(tmp_path / "plain")
        assert list(own.path.iterdir()) == []


def test_what_an_earlier_run_left_is_closed_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    with closing(OwnDirectory(tmp_path / "a")) as own:
        assert mode(own.path) == 0o700


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "a").symlink_to("home")
    with pytest.raises(BadRequest, match=r"a is a symbolic link .* zerotools does not follow it"):
        OwnDirectory(tmp_path / "a")


def test_another_users_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadRequest, match=r"a belongs to another user \(uid \d+\)"):
        OwnDirectory(tmp_path / "a")


def test_one_at_a_time(tmp_path: Path) -> None:
    with closing(OwnDirectory(tmp_path / "a")), pytest.raises(BlockingIOError):
        OwnDirectory(tmp_path / "a")


def test_another_in_its_place_is_seen(tmp_path: Path) -> None:
    with closing(OwnDirectory(tmp_path / "a")) as own:
        assert own.is_at(tmp_path / "a")
        (tmp_path / "a").rename(tmp_path / "b")
        assert not own.is_at(tmp_path / "a")
        (tmp_path / "a").symlink_to("b")
        assert not own.is_at(tmp_path / "a")
        assert own.is_at(tmp_path / "b")


def test_what_a_link_leads_to_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "draft").symlink_to("precious")
    with new_text_file(tmp_path / "draft") as file:
        file.write("new")
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "draft").read_text() == "new"
    assert not (tmp_path / "draft").is_symlink()


def status(mode: int, uid: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, os.getegid(), 0, 0, 0, 0))


def test_permissions_of_the_same_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    copy_access(status(0o40750, os.geteuid()), tmp_path)
    assert tmp_path.stat().st_mode == 0o40750


def test_a_file_that_cannot_be_given_to_the_other_user_keeps_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    tmp_path.chmod(0o755)
    copy_access(status(0o40000, os.geteuid() + 1), tmp_path)
    assert tmp_path.stat().st_mode == 0o40755


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(OSError, match=r"its file system has no locks \(.*\); mount it .*/a'$"):
        OwnDirectory(tmp_path / "a")
