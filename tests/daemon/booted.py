"""A small systemd in namespaces of its own: the machine's is neither asked nor changed.

It has the targets that units of a real machine are ordered by, and no other unit. What is mounted
or written below `FRESH` and /etc is gone with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from harness.started import Started, run
from tests.daemon.waiting import wait_for

MANAGER = Path("/lib/systemd/systemd")
UNITS = Path("/lib/systemd/system")
TARGETS = ("basic", "multi-user", "network", "remote-fs", "shutdown", "sockets", "sysinit")
FRESH = ("/run", "/var/lib", "/opt", "/home", "/etc/systemd/system")
NAMESPACES = ("--pid", "--mount", "--cgroup", "--uts", "--ipc")
BOOT = """
mount --make-rprivate / && mount -t proc proc /proc || exit 1
units=$(mktemp -d) && mount -t tmpfs tmpfs "$units" || exit 1
for name in $3; do cp "$2/$name.target" "$units/" || exit 1; done
mount --bind "$units" "$2" && umount "$units" && rmdir "$units" || exit 1
own=$(mktemp -d) && mount -t tmpfs tmpfs "$own" && cp -a /etc/. "$own" || exit 1
mount --bind "$own" /etc && umount "$own" && rmdir "$own" || exit 1
for place in $4; do mkdir -p "$place" && mount -t tmpfs tmpfs "$place" || exit 1; done
mkdir -p /run/systemd/system /run/lock || exit 1
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
export container=test
exec "$1" --system --unit=multi-user.target --log-target=console --show-status=0
"""
_numbers = count()


def can_boot() -> bool:
    """Whether this machine lets a systemd of its own start in namespaces."""
    if os.geteuid() or not MANAGER.exists() or shutil.which("unshare") is None:
        return False
    mount = "mount -t cgroup2 cgroup2 /mnt && mount -t tmpfs tmpfs /mnt"
    command = ("unshare", "--fork", *NAMESPACES, "sh", "-c", f"mount --make-rprivate / && {mount}")
    return run(command, capture_output=True, timeout=20).returncode == 0


@dataclass(frozen=True)
class Booted:
    """The systemd that runs as `pid`."""

    pid: int

    @property
    def root(self) -> Path:
        """Its file system, seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def run(self, command: str, *, directory: Path | None = None, check: bool = True) -> str:
        """What the shell command says that root runs there."""
        inside = ("nsenter", f"--target={self.pid}", "-m", "-p", "-C", "-u", "-i")
        done = run(
            (*inside, f"--wdns={directory or '/'}", "bash", "-c", command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return str(done.stdout)

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run(f"systemctl show {unit} -p {name} --value").strip()


@contextmanager
def booted(log: Path) -> Iterator[Booted]:
    """A systemd for the time of the block; `log` gets what it says."""
    words = (str(MANAGER), str(UNITS), " ".join(TARGETS), " ".join(FRESH))
    options = ("--kill-child=KILL", "--fork", *NAMESPACES)
    group = _own_cgroup()
    enter = ("bash", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group))
    with log.open("wb") as output:
        process = Started(
            (*enter, "unshare", *options, "bash", "-c", BOOT, "boot", *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        def up() -> Booted | None:
            assert process.is_running(), log.read_text()
            children = psutil.Process(process.pid).children()
            found = Booted(children[0].pid) if children else None
            ready = found and (found.root / "run/systemd/private").exists()
            return found if ready else None

        found = wait_for(up, "systemd to boot")
        assert found is not None
        yield found
    finally:
        process.kill()
        process.wait()
        wait_for(lambda: _removed(group), "every process of it to end")


def _own_cgroup() -> Path:
    """A cgroup of version 2, which becomes the root of all that this systemd sees."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next(Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2")
    group = root / f"zerotools-test-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    return group


def _removed(group: Path) -> bool:
    if "populated 1" in (group / "cgroup.events").read_text():
        return False
    for directory, _, _ in os.walk(group, topdown=False):
        Path(directory).rmdir()
    return True
