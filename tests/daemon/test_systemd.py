"""systemd: the units are valid, and the daemon speaks its protocol."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from harness.started import Started, run
from tests.daemon.daemons import processes_in
from tests.daemon.waiting import wait_for
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd import systemd

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
MANAGER = Path("/lib/systemd/systemd")
NAMESPACES = ("--pid", "--mount", "--cgroup", "--uts", "--ipc")
BOOT = """
mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/lock &&
mount -t proc proc /proc && mount -t tmpfs tmpfs /var/lib || exit 1
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t tmpfs tmpfs /etc/systemd/system || exit 1
cp -r "$1"/. /etc/systemd/system/
export container=test
exec "$2" --system --unit=test.target --log-target=console --show-status=0
"""
"""Our unit is all that this systemd starts; what it mounts is seen in its namespace alone."""
PLACE = """[Unit]
DefaultDependencies=no
[Service]
Environment=PYTHONPATH={path}
ExecStart=
ExecStart={python} -m zerotoolsd --state-dir {state}
"""
TARGET = "[Unit]\nDefaultDependencies=no\nWants=zerotoolsd.service\n"


def can_boot() -> bool:
    """Whether this machine lets a systemd of its own start in namespaces."""
    if os.geteuid() or not MANAGER.exists() or shutil.which("unshare") is None:
        return False
    mount = "mount -t cgroup2 cgroup2 /mnt && mount -t tmpfs tmpfs /mnt"
    command = ("unshare", "--fork", *NAMESPACES, "sh", "-c", f"mount --make-rprivate / && {mount}")
    return run(command, capture_output=True, timeout=20).returncode == 0


@pytest.mark.skipif(not can_boot(), reason="needs root, systemd, and namespaces to boot it in")
def test_in_a_booted_systemd_a_job_lives_on_when_its_daemon_is_killed(tmp_path: Path) -> None:
    units, state = tmp_path / "units", tmp_path / "state"
    (units / "zerotoolsd.service.d").mkdir(parents=True)
    unit = (UNITS / "zerotoolsd.service").read_text()
    (units / "zerotoolsd.service").write_text(unit.replace("Requires=zerotoolsd.socket\n", ""))
    (units / "test.target").write_text(TARGET)
    path = f"{ROOT}:{ROOT / 'daemon'}"
    place = PLACE.format(path=path, python=sys.executable, state=state)
    (units / "zerotoolsd.service.d/place.conf").write_text(place)
    options = ("--kill-child=KILL", "--fork", *NAMESPACES)
    boot = ("bash", "-c", BOOT, "boot", str(units), str(MANAGER))
    log = tmp_path / "log"
    with log.open("wb") as output, running(("unshare", *options, *boot), output) as manager:
        client = DaemonClient(state / "api.sock")

        def pid() -> int | None:
            assert manager.poll() is None, log.read_text()
            with suppress(DaemonUnreachable):
                return int(client.health()["pid"])
            return None

        first = wait_for(pid, "the daemon to answer")
        words = ["bash", "-c", "cat /proc/self/status; until test -e go; do sleep 0.05; done"]
        script = {"command": words, "directory": str(tmp_path)}
        job = {"engine": "script", "device": "cpu", "script": script}
        client.submit(job_from_dict(job, source="job"))
        rank = state / "jobs/1/attempt-1/rank-0.log"
        wait_for(lambda: rank.exists() and "CapBnd" in rank.read_text(), "the rank to run")
        for process in processes_in(state.parent):
            if b"-m\0zerotoolsd\0" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
        wait_for(lambda: (now := pid()) is not None and now != first, "systemd to start it again")
        (tmp_path / "go").touch()
        wait_for(lambda: client.job(1)["state"] == "succeeded", "the job to end")
        assert len(client.job(1)["attempts"]) == 1
    assert "NoNewPrivs:\t1" in rank.read_text()


@contextmanager
def running(command: Sequence[str], output: IO[bytes]) -> Iterator[Started]:
    """A process for the time of the block."""
    process = Started(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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


def test_a_daemon_whose_loop_hangs_gives_no_sign_of_life(tmp_path: Path) -> None:
    states = [True, False, True]

    async def feed() -> None:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2"}
        with suppress(IndexError):  # there is no further state
            await systemd.feed_watchdog(lambda: states.pop(0), environment)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        asyncio.run(feed())
        assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_only_a_socket_meant_for_this_process_is_taken() -> None:
    assert systemd.inherited_socket({}) is None
    assert systemd.inherited_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    own = str(os.getpid())
    assert systemd.inherited_socket({"LISTEN_PID": own, "LISTEN_FDS": "0"}) is None
