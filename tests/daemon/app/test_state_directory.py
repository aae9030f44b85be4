"""One daemon for one state directory, and nobody else who can write there."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import run
from tests.daemon.daemons import ROOT
from tests.daemon.small_disks import mounted
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotoolsd.app import run_daemon, state_directory
from zerotoolsd.app.state_directory import LOCK, lock_state_dir, refuse_open_to_others

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="is of daemons of root")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_second_daemon_is_refused_also_without_the_lock_file(
    tmp_path: Path, deleted: bool
) -> None:
    state = tmp_path / "state"
    held = lock_state_dir(state)
    if deleted:
        (state / LOCK).unlink()
    with pytest.raises(DaemonRefused, match="another zerotoolsd, pid "):
        lock_state_dir(state)
    for each in held:
        os.close(each)
    for each in lock_state_dir(state):
        os.close(each)


def test_a_program_that_a_killed_daemon_was_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the locks, too, until it is executed; the daemon that the file names is no more."""
    held = lock_state_dir(tmp_path)
    command = [sys.executable, "-c", "import os; print(os.getpid())"]
    pid = int(run(command, timeout=20, stdout=subprocess.PIPE).stdout)
    (tmp_path / LOCK).write_text(f"{pid}\n")
    with monkeypatch.context() as patch:
        patch.setattr(state_directory, "_STARTING_SECONDS", 0.0)
        with pytest.raises(DaemonRefused, match=f"pid {pid}, uses"):
            lock_state_dir(tmp_path)
    left = list(held)
    monkeypatch.setattr(state_directory.time, "sleep", lambda _: os.close(left.pop()))
    for each in lock_state_dir(tmp_path):
        os.close(each)
    assert not left


def test_a_daemon_that_is_stuck_in_the_kernel_is_told_apart(tmp_path: Path) -> None:
    for state, stuck in (("D", True), ("Z", True), ("S", False), ("R", False)):
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 (a ) b) {state} 1 7 7")
        assert state_directory._is_stuck(7, tmp_path) is stuck
    assert not state_directory._is_stuck(8, tmp_path)


def test_a_service_waits_for_the_daemon_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(run_daemon, "LOCK_PAUSE_SECONDS", 0.001)
    state = tmp_path / "state"
    held = lock_state_dir(state)

    async def story() -> tuple[int, ...]:
        waiting = asyncio.create_task(run_daemon._lock(state, asyncio.Event()))
        loop = asyncio.get_running_loop()
        link.setblocking(False)
        said = [await loop.sock_recv(link, 4096) for _ in range(2)]
        assert said[1].startswith(b"STATUS=another zerotoolsd, pid ")
        for each in held:
            os.close(each)
        return await waiting

    for each in asyncio.run(story()):
        os.close(each)
    link.close()


def test_one_that_is_started_by_hand_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    held = lock_state_dir(tmp_path / "state")
    with pytest.raises(DaemonRefused, match="stop it, or start with another"):
        asyncio.run(run_daemon._lock(tmp_path / "state", asyncio.Event()))
    for each in held:
        os.close(each)


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "owner", "why"),
    [(0o777, 0, "has mode 0777"), (0o770, 0, "has mode 0770"), (0o700, 1234, "belongs to uid")],
)
def test_root_refuses_a_directory_that_others_can_change(
    tmp_path: Path, mode: int, owner: int, why: str
) -> None:
    for place in (tmp_path / "state", tmp_path / "parent" / "state"):
        place.mkdir(parents=True)
        place.chmod(0o700)
        changed = tmp_path / place.relative_to(tmp_path).parts[0]
        changed.chmod(mode)
        os.chown(changed, owner, -1)
        with pytest.raises(BadRequest, match=why) as refused:
            lock_state_dir(place)
        assert f"chown root {changed} && chmod go-w {changed}" in str(refused.value)
        assert not (place / LOCK).exists()
        refuse_open_to_others(place, 1000)  # who is not root takes what he is given


@AS_ROOT
def test_a_sticky_parent_will_do(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent").chmod(0o1777)
    refuse_open_to_others(tmp_path / "parent" / "state", 0)


# Inodes are taken in `test_users_starving` and `attempts/test_start_backoff`, too.
@pytest.mark.parametrize("taken", [pytest.param("inodes", marks=pytest.mark.full), "blocks"])
def test_a_full_disk_at_the_start_is_no_mistake_of_the_configuration(
    tmp_path: Path, taken: str
) -> None:
    with mounted(tmp_path / "disk", kib=256, inodes=20) as disk:
        if disk is None:
            pytest.skip("this process may not mount a small disk")
        if taken == "inodes":
            disk.take_inodes()
        else:
            (disk.path / "state").mkdir(mode=0o700)
            (disk.path / "ballast").write_bytes(bytes(200 * 1024))
        command = [sys.executable, "-m", "zerotoolsd", "--state-dir", str(disk.path / "state")]
        path = f"{ROOT}:{ROOT / 'daemon'}"
        done = run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
        )
    # systemd does not start it again after 2 to 4, and does after this.
    assert done.returncode == 71
    assert "the operating system refuses an operation" in done.stdout
    assert "[Errno" not in done.stdout
    assert "Traceback" not in done.stdout


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", none)
    number = errno.EOPNOTSUPP
    with pytest.raises(BadRequest, match="state cannot be used: its file system has no locks"):
        lock_state_dir(tmp_path / "state")
    number = errno.ENOLCK  # the lock service of an NFS server may come back
    with pytest.raises(OSError, match="its file system has no locks"):
        lock_state_dir(tmp_path / "state")
