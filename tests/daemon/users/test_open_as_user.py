"""Directories of users, which the daemon opens with their rights."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.users.other_users import AS_ROOT, OTHER_UID, UID, open_directory, user_of
from zerotoolsd.supervisor.durable_files import placeholder_of, read_json, reserve_space, write_json
from zerotoolsd.supervisor.stop.stop_request_file import write_request
from zerotoolsd.users.open_as_user import file_rights, make_owned, opened_run_directory, owner_of

pytestmark = AS_ROOT
ACCOUNT = user_of().account


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with open_directory() as place:
        make_owned(place / "attempt-1", ACCOUNT)
        yield place / "attempt-1"


def test_files_are_the_users_and_of_this_thread_alone(run_dir: Path) -> None:
    secret = run_dir.parent / "secret"
    secret.write_text("{}")
    secret.chmod(0o600)
    go, seen = threading.Event(), list[str]()
    thread = threading.Thread(target=lambda: (go.wait(20), seen.append(secret.read_text())))
    thread.start()
    with file_rights(UID, UID):
        with pytest.raises(PermissionError):
            secret.read_text()
        go.set()
        thread.join()
        (run_dir / "made").touch()
    assert seen == [secret.read_text()] == ["{}"]
    found = (run_dir / "made").stat()
    assert (found.st_uid, found.st_gid) == (UID, UID)


def test_a_directory_of_a_user_is_known_and_one_of_root_is_not(run_dir: Path) -> None:
    assert owner_of(run_dir) == UID
    assert owner_of(run_dir.parent) is owner_of(run_dir / "none") is None
    with opened_run_directory(run_dir.parent) as base:
        assert base == run_dir.parent
    with opened_run_directory(run_dir) as base:
        assert base != run_dir
        assert base.samefile(run_dir)
        write_json(base / "exit.json", {"a": 1})
        assert read_json(base / "exit.json") == {"a": 1}
    assert (run_dir / "exit.json").stat().st_uid == UID


def test_no_link_leads_out_of_it(run_dir: Path) -> None:
    target = run_dir.parent / "root.json"
    target.write_text("{}")
    target.chmod(0o600)
    names = ("exit.json", f".exit.json.{os.getpid()}.new", "request.json", ".request.json.room")
    for name in names:
        (run_dir / name).symlink_to(target)
    with opened_run_directory(run_dir) as base:
        with pytest.raises(ValueError, match=r"exit.json is a link"):
            read_json(base / "exit.json")
        write_json(base / "exit.json", {"of": "the user"})
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            write_request(base, "cancel")
    assert target.read_text() == "{}"
    assert not (run_dir / "exit.json").is_symlink()


def test_a_link_or_another_users_directory_in_its_place_is_refused(run_dir: Path) -> None:
    link = run_dir.with_name("attempt-2")
    link.symlink_to(run_dir)
    os.lchown(link, UID, UID)
    with (
        pytest.raises(OSError, match=r"symbolic links|Not a directory"),
        opened_run_directory(link),
    ):
        pytest.fail("it was opened")
    with pytest.raises(PermissionError, match=f"belongs to uid {UID}, not to uid {OTHER_UID}"):
        make_owned(run_dir, user_of(OTHER_UID).account)
    (run_dir.parent / "full").mkdir()
    (run_dir.parent / "full" / "file").touch()
    with pytest.raises(PermissionError, match="belongs to uid 0"):
        make_owned(run_dir.parent / "full", ACCOUNT)


def test_nothing_in_it_is_waited_for(run_dir: Path) -> None:
    for name in ("exit.json", ".exit.json.room"):
        os.mkfifo(run_dir / name)
        os.lchown(run_dir / name, UID, UID)
    with opened_run_directory(run_dir) as base:
        with pytest.raises(ValueError, match="not a regular file"):
            read_json(base / "exit.json")
        with pytest.raises(OSError, match=r"Illegal seek|Invalid argument"):
            reserve_space(base / "exit.json", 1)
        placeholder_of(base / "exit.json").unlink()
        reserve_space(base / "exit.json", 1)
        assert placeholder_of(base / "exit.json").stat().st_uid == UID


def test_what_another_user_links_in_is_not_read(run_dir: Path) -> None:
    other = run_dir.parent / "others.json"
    other.write_text('{"secret": 1}')
    os.lchown(other, OTHER_UID, OTHER_UID)
    other.chmod(0o600)
    os.link(other, run_dir / "exit.json")
    with opened_run_directory(run_dir) as base, pytest.raises(PermissionError):
        read_json(base / "exit.json")


def test_errors_name_the_directory_as_it_is_called(run_dir: Path) -> None:
    with pytest.raises(FileNotFoundError) as info, opened_run_directory(run_dir) as base:
        (base / "none").read_text()
    assert info.value.filename == str(run_dir / "none")
