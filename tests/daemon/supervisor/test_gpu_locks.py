"""Locks of GPUs in a directory in which everybody may make files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.lock_keepers import NOBODY, kept_locked, lock_directory
from tests.daemon.made_attempts import finish, make_attempt, started, supervise
from zerotoolsd.supervisor.gpu_locks import (
    GateHeld,
    GpuTaken,
    LockDirectory,
    NoLocks,
    acquire_locks,
    holders_of,
    holders_text,
    lock_name,
)
from zerotoolsd.supervisor.procfs import read_process

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
        return directory.acquire(UUID, lambda: join)


def test_a_gpu_is_taken_once_joined_by_its_own_and_free_with_the_last(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    first = take(gpus)
    with pytest.raises(GpuTaken, match="outside of this queue"):
        take(gpus)
    second = take(gpus, join=True)
    os.close(first)
    with pytest.raises(GpuTaken):
        take(gpus)
    os.close(second)
    os.close(take(gpus))


def test_a_lock_of_somebody_else_names_pid_and_uid(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    with kept_locked(gpus / UUID) as pid:
        with pytest.raises(GpuTaken, match=f"^is in use by pid {pid} of uid {NOBODY}, outside of"):
            take(gpus)
        with pytest.raises(
            GpuTaken
        ):  # exclusive: who claims to belong to it does not get it either
            take(gpus, join=True)
    os.close(take(gpus))


def test_whoever_keeps_the_gate_is_named(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    directory = LockDirectory(gpus)
    with kept_locked(gpus) as pid, pytest.raises(GateHeld) as raised:
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
        with pytest.raises(GpuTaken, match=f"cannot be locked: .*{what}; it belongs to uid"):
            take(gpus)
        (gpus / UUID).unlink()
    (gpus / UUID).mkdir()
    with pytest.raises(GpuTaken, match="is not a regular file"):
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
        again = directory.acquire(UUID)
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
        with pytest.raises(NoLocks, match=f"belongs to uid {NOBODY}, but must belong to root"):
            LockDirectory(gpus)


def test_names_are_those_of_files_also_of_mig_instances() -> None:
    assert lock_name("GPU-8c1d0f2e-1") == "GPU-8c1d0f2e-1"
    assert lock_name("MIG-GPU-8c1d0f2e/1/0") == "MIG-GPU-8c1d0f2e_1_0"
    assert lock_name("../x") == "___x"


LOCKS = """1: FLOCK  ADVISORY  WRITE 71 00:1a:33 0 EOF
1: -> FLOCK  ADVISORY  WRITE 72 00:1a:33 0 EOF
2: FLOCK  ADVISORY  READ  73 00:1a:33 0 EOF
3: FLOCK  ADVISORY  READ  74 00:1a:34 0 EOF
4: POSIX  ADVISORY  WRITE 74 00:1a:33 0 EOF
5: FLOCK  ADVISORY  READ  75 00:1a:33 0 EOF
6: FLOCK  ADVISORY  READ  0 00:1a:33 0 EOF
"""


def machine(proc: Path, **uids: int) -> os.stat_result:
    """`proc` with these processes, and the file of inode 33 of device 0:1a."""
    (proc / "locks").write_text(LOCKS)
    for name, uid in uids.items():
        (proc / name.removeprefix("p")).mkdir()
        (proc / name.removeprefix("p") / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
    return os.stat_result((0o100644, 33, os.makedev(0, 0x1A), 1, 8, 8, 0, 0, 0, 0))


def test_those_that_live_are_named_by_their_real_uid(tmp_path: Path) -> None:
    found = machine(tmp_path, p71=1002, p72=5, p73=1002, p74=6)
    assert holders_of(found, tmp_path) == {71: 1002, 73: 1002}
    assert holders_text(found, tmp_path) == "pids 71, 73 of uid 1002"


def test_one_whose_taker_is_gone_is_said_to_be_unseen(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert holders_text(found, tmp_path).startswith("a process that cannot be seen from here")
    assert holders_of(found, tmp_path / "nowhere") == {}


def told(gpus: Path, *uuids: str, held: tuple[str, ...] = (), ticks: int = 0) -> dict[str, Any]:
    own = read_process(os.getpid())
    assert own is not None
    daemon = {"pid": own.pid, "start_ticks": own.start_ticks + ticks}
    return {"directory": str(gpus), "gpus": uuids, "held": held, "daemon": daemon}


def hold(gpus: Path, uuid: str) -> int:
    directory = LockDirectory(gpus)
    try:
        directory.wait_for_gate(5.0)
        return directory.acquire(uuid)
    finally:
        directory.close()


def test_it_joins_a_daemon_that_lives_and_nobody_else(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    daemon = hold(gpus, "GPU-1")
    locks = acquire_locks(told(gpus, "GPU-0", "GPU-1", held=("GPU-1",)))
    assert (locks.refusal, len(locks.descriptors)) == (None, 2)
    locks.close()
    for wrong in (told(gpus, "GPU-1"), told(gpus, "GPU-1", held=("GPU-1",), ticks=1)):
        refused = acquire_locks(wrong)
        assert refused.descriptors == ()
        assert refused.refusal is not None
        assert refused.refusal.startswith("GPU-1 is in use by ")
    os.close(daemon)


_AS_ANOTHER = """
import json, os, sys
from zerotoolsd.supervisor.gpu_locks import acquire_locks
os.chdir(sys.argv[2])
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)  # group 0 is shown all
os.setresuid(*[int(sys.argv[1])] * 3)
assert not os.path.exists(f"/proc/{os.getppid()}/stat")
print(acquire_locks(json.loads(sys.argv[3])).refusal)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /proc that hides its processes")
def test_a_users_supervisor_joins_a_daemon_of_root_that_proc_hides(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    daemon = hold(gpus, "GPU-1")
    # In its own directory: those above are of the user of the test alone.
    here = {**told(gpus, "GPU-1", held=("GPU-1",)), "directory": "."}
    mount = 'mount -t proc -o hidepid=2 proc /proc || exit 3; exec "$@"'
    python = (sys.executable, "-c", _AS_ANOTHER, str(NOBODY), str(gpus), json.dumps(here))
    done = run(
        ("unshare", "--mount", "sh", "-c", mount, "sh", *python),
        timeout=60,
        capture_output=True,
        text=True,
    )
    if done.returncode == 3 or "unshare failed" in done.stderr:
        pytest.skip(f"no /proc of its own: {done.stderr}")
    assert (done.stdout, done.stderr) == ("None\n", "")
    os.close(daemon)


def test_all_or_none_are_held(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    with kept_locked(gpus / "GPU-1"):
        assert acquire_locks(told(gpus, "GPU-0", "GPU-1")).refusal
        os.close(hold(gpus, "GPU-0"))
    assert acquire_locks({}).refusal is None
    gone = acquire_locks(told(tmp_path / "gone", "GPU-0"))
    assert gone.refusal is not None
    assert "the locks of the GPUs are gone" in gone.refusal


def test_the_attempt_holds_its_gpu_until_the_last_of_its_processes_ends(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    run = make_attempt(tmp_path / "run", "release exit=0", gpu_locks=told(gpus, "GPU-0"))
    process = supervise(run)
    started(run)
    with pytest.raises(GpuTaken, match=f"^is in use by pid {process.pid} of uid {os.geteuid()}, "):
        hold(gpus, "GPU-0")
    (run / "release").touch(0o600)
    assert finish(run, process)["outcome"] == "finished"
    os.close(hold(gpus, "GPU-0"))


def test_an_attempt_whose_gpu_went_to_another_ends_before_it_began(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    run = make_attempt(tmp_path / "run", "exit=0", gpu_locks=told(gpus, "GPU-0"))
    with kept_locked(gpus / "GPU-0") as pid:
        record = finish(run, supervise(run))
    assert record["outcome"] == "not_ready"
    assert f"GPU-0 is in use by pid {pid} of uid {NOBODY}" in record["cause"]
    assert not list(run.glob("rank-*"))
