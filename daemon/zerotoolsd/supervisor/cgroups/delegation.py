"""The control group below which this process may create others: its current one, if that is
delegated.

    /sys/fs/cgroup/system.slice/zerotools-job-7-1-3f9c01aa.service      delegated by systemd
        supervisor/                                   keeper and supervisor, if there are limits
        zerotools-7-1-3f9c01aa/                       the ranks and all processes that they start

Under systemd a group is delegated only if systemd marks it (`Delegate=yes`; a user's systemd may
mark none), or if it is the unit of an attempt. Write access proves nothing for root. Without
systemd, a group is delegated if it is writable. The kernel gives controllers only to groups below a
group that has no processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotoolsd.supervisor.plan import UNIT_PREFIX

PROCS = "cgroup.procs"
CONTROLLERS = "cgroup.controllers"
SUBTREE = "cgroup.subtree_control"
LEAF = "supervisor"
_UNITS = (".service", ".scope")
_MARKS = ("user.delegate", "trusted.delegate")

PREFIX = "zerotools-"
"""Prefix of the name of an attempt's group."""

GetMark = Callable[[Path, str], bytes]


class NotDelegated(Exception):
    """No control group can be divided or limited; the message gives the reason."""


@dataclass(frozen=True)
class Delegation:
    """The directory of a control group that is ours to divide."""

    directory: Path

    def refuse_unlimited(self, wanted: Collection[str], own: Collection[int] = ()) -> None:
        """Raise NotDelegated if groups below this one cannot have the controllers `wanted`.

        `own` are processes that will leave the group.
        """
        lacking = sorted(set(wanted) - set(_words(self.directory / CONTROLLERS)))
        if lacking:
            raise NotDelegated(
                f"the control group {self.directory} has no {' and no '.join(lacking)} controller"
            )
        others = set(_pids(self.directory)) - set(own)
        if others and not self.is_root and set(wanted) - set(_words(self.directory / SUBTREE)):
            raise NotDelegated(f"the control group {self.directory} has other processes in it")

    @property
    def is_root(self) -> bool:
        """Whether this is the machine's root group, which may have both processes and
        controllers."""
        return not (self.directory / "cgroup.type").exists()

    def give(self, wanted: Collection[str], own: Collection[int]) -> None:
        """Enable the controllers `wanted` for groups below this; move `own` processes into a leaf.

        Raises NotDelegated, OSError.
        """
        self.refuse_unlimited(wanted, own)
        missing = set(wanted) - set(_words(self.directory / SUBTREE))
        if not missing:
            return
        leaf = self.directory / LEAF
        for pid in sorted(set(_pids(self.directory)) & set(own)):
            leaf.mkdir(exist_ok=True)
            write(leaf / PROCS, str(pid))
        for name in sorted(missing):
            write(self.directory / SUBTREE, f"+{name}")


def write(path: Path, text: str) -> None:
    """Write one value into a file of the kernel's. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def find(root: Path = Path("/"), mark: GetMark = os.getxattr) -> Delegation:
    """Return the delegated group of the machine that has its file system at `root`.

    Raises NotDelegated.
    """
    mount, top = _mount(root)
    own = _own(root)
    inside = own.removeprefix(top.rstrip("/")) if own.startswith(top.rstrip("/") + "/") else None
    if inside is None or "/.." in own:
        raise NotDelegated(f"the control group {own} is outside {mount}")
    place = mount / inside.lstrip("/")
    if _was_given(place):
        return Delegation(place)
    if (root / "run/systemd/system").is_dir():
        # No further up: the group of a user's systemd is delegated, too, but to that one.
        found = next((p for p in _upwards(place, mount) if p.suffix in _UNITS), None)
        if found is None or not (found.name.startswith(UNIT_PREFIX) or _is_marked(found, mark)):
            raise NotDelegated(f"systemd has not delegated the control group {own} (Delegate=yes)")
        place = found
    if not (os.access(place, os.W_OK | os.X_OK) and os.access(place / PROCS, os.W_OK)):
        raise NotDelegated(f"the control group {own} may not be written by uid {os.geteuid()}")
    return Delegation(place)


def _was_given(place: Path) -> bool:
    """Return whether root has created the group for an attempt of this user and given it to the
    user."""
    try:
        return place.name.startswith(PREFIX) and place.stat().st_uid == os.geteuid() != 0
    except OSError:
        return False


def mounted(root: Path = Path("/")) -> Path:
    """Return the mount point of control groups version 2. Raises NotDelegated."""
    return _mount(root)[0]


def controllers(directory: Path) -> list[str]:
    """Return the controllers that a group has."""
    return _words(directory / CONTROLLERS)


def _upwards(place: Path, mount: Path) -> Iterator[Path]:
    while place != mount and place.is_relative_to(mount):
        yield place
        place = place.parent


def _is_marked(place: Path, mark: GetMark) -> bool:
    for name in _MARKS:
        try:
            if mark(place, name).strip(b"\0") == b"1":
                return True
        except OSError:
            continue
    return False


def _mount(root: Path) -> tuple[Path, str]:
    """Return the mount point of version 2, and the group that is visible there."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            parts = before.split(" ")
            place = parts[4].replace("\\040", " ")
            return root / place.lstrip("/"), parts[3]
    raise NotDelegated("control groups of version 2 are not mounted")


def _own(root: Path) -> str:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        if line.startswith("0::/"):
            return line[3:]
    raise NotDelegated("the kernel lists no control group for this process")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def _pids(directory: Path) -> list[int]:
    return [int(word) for word in _words(directory / PROCS) if word.isdecimal()]
