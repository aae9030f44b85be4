"""Locks of GPUs in a directory in which everybody may make files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.lock_keepers import NOBODY, kept_locked, lock_directory
from zerotoolsd.supervisor.gpu_locks.lock_directory import (
    GateShut,
    LockDirectory,
    NoLocks,
    Taken,
    lock_name,
)

UUID = "GPU-8c1d0f2e"


@contextmanager
def opened(path: Path) -> Iterator[LockDirectory]:
    """With the gate."""
    directory = LockDirectory(path)
    directory.wait_for_gate(5.0)
    try:
        yield directory
    finally:
        directory.close()


def take(path: Path, *, join: bool = False) -> int:
    with opened(path) as directory:
        return directory.take(UUID, lambda: join)


def test_a_gpu_is_taken_once_joined_by_its_own_and_free_with_the_last(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    first = take(gpus)
    with pytest.raises(Taken, match="outside of this queue"):
        take(gpus)
    second = take(gpus, join=True)
    os.close(first)
    with pytest.raises(Taken):
        take(gpus)
    os.close(second)
    os.close(take(gpus))


def test_a_lock_of_somebody_else_names_pid_and_uid(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    with kept_locked(gpus / UUID) as pid:
        with pytest.raises(Taken, match=f"^is in use by pid {pid} of uid {NOBODY}, outside of"):
            take(gpus)
        with pytest.raises(Taken):  # exclusive: who claims to belong to it does not get it either
            take(gpus, join=True)
    os.close(take(gpus))


def test_whoever_keeps_the_gate_is_named(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    directory = LockDirectory(gpus)
    with kept_locked(gpus) as pid, pytest.raises(GateShut) as raised:
        directory.wait_for_gate(0.0)
    assert f"are in use by pid {pid} of uid {NOBODY}" in str(raised.value)
    directory.wait_for_gate(5.0)
    directory.close()


def test_what_lies_in_the_place_of_a_lock_is_not_followed_opened_or_waited_for(
    tmp_path: Path,
) -> None:
    gpus = lock_directory(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    made = {
        "is a link": lambda: (gpus / UUID).symlink_to(precious),
        "is not a regular file": lambda: os.mkfifo(gpus / UUID),
        "has other names": lambda: (gpus / UUID).hardlink_to(precious),
    }
    for what, make in made.items():
        make()
        with pytest.raises(Taken, match=f"cannot be locked: .*{what}; it belongs to uid"):
            take(gpus)
        (gpus / UUID).unlink()
    (gpus / UUID).mkdir()
    with pytest.raises(Taken, match="is not a regular file"):
        take(gpus)
    assert precious.read_text() == "kept"


def test_everybody_may_open_what_is_made_whatever_the_umask(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    before = os.umask(0o077)
    try:
        fd = take(gpus)
    finally:
        os.umask(before)
    assert os.fstat(fd).st_mode & 0o777 == 0o644
    os.close(fd)


def test_a_lock_whose_file_was_removed_is_noticed(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    fd = take(gpus)
    with opened(gpus) as directory:
        assert directory.is_current(UUID, fd)
        (gpus / UUID).unlink()
        assert not directory.is_current(UUID, fd)
        again = directory.take(UUID)
        assert directory.is_current(UUID, again)
    os.close(fd)
    os.close(again)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_that_another_user_made_is_locked_as_any(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    (gpus / UUID).touch(0o600)
    os.chown(gpus / UUID, NOBODY, NOBODY)
    os.close(take(gpus))
    assert (gpus / UUID).stat().st_uid == NOBODY


def test_a_directory_that_others_control_is_not_relied_on(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    gpus.chmod(0o777)
    with pytest.raises(NoLocks, match="has mode 0777, so others can remove locks"):
        LockDirectory(gpus)
    with pytest.raises(NoLocks, match="No such file"):
        LockDirectory(tmp_path / "missing")
    (tmp_path / "link").symlink_to(gpus)
    with pytest.raises(NoLocks):
        LockDirectory(tmp_path / "link")
    if os.geteuid() == 0:
        gpus.chmod(0o1777)
        os.chown(gpus, NOBODY, NOBODY)
        with pytest.raises(NoLocks, match=f"belongs to uid {NOBODY}, and must be root's"):
            LockDirectory(gpus)


def test_names_are_those_of_files_also_of_mig_instances() -> None:
    assert lock_name("GPU-8c1d0f2e-1") == "GPU-8c1d0f2e-1"
    assert lock_name("MIG-GPU-8c1d0f2e/1/0") == "MIG-GPU-8c1d0f2e_1_0"
    assert lock_name("../x") == "___x"
