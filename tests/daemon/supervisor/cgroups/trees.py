"""A machine whose control groups are plain files."""

from __future__ import annotations

import errno
from collections.abc import Container
from pathlib import Path

MOUNT = "35 24 0:30 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
OWN = "/system.slice/zt.service"


class FakeTree:
    """`own` is the group of this process, with these `pids` in it; `systemd`: it runs the machine,
    and has delegated the groups `marked`."""

    def __init__(
        self,
        root: Path,
        own: str = OWN,
        *,
        top: str = "/",
        systemd: bool = True,
        marked: Container[str] = (OWN,),
        controllers: str = "cpu io memory pids",
        pids: str = "",
    ) -> None:
        self.root = root
        self.marked = marked
        self.mount = root / "sys/fs/cgroup"
        self.own = self.mount / own.removeprefix(top).lstrip("/")
        for place in (root / "proc/self", self.own):
            place.mkdir(parents=True, exist_ok=True)
        mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n" + MOUNT.format(top=top)
        (root / "proc/self/mountinfo").write_text(mounts)
        (root / "proc/self/cgroup").write_text(f"9:memory:/x\n0::{own}\n")
        if systemd:
            (root / "run/systemd/system").mkdir(parents=True)
        place = self.own
        while True:
            (place / "cgroup.procs").write_text(pids if place == self.own else "")
            (place / "cgroup.controllers").write_text(controllers)
            (place / "cgroup.subtree_control").write_text("")
            if place == self.mount:
                break
            (place / "cgroup.type").write_text("domain\n")
            place = place.parent

    def mark(self, path: Path, name: str) -> bytes:
        """As systemd marks what it has delegated."""
        if name == "user.delegate" and f"/{path.relative_to(self.mount)}" in self.marked:
            return b"1"
        raise OSError(errno.ENODATA, "no such mark")
