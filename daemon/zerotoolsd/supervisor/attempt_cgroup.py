"""Control groups (cgroup v2) that contain the processes of an attempt and limit their memory,
processors and so on, if this process may create them.

`find_delegation` returns the control group in which this process may create subgroups. `make_group`
creates the subgroup of one attempt and sets its limits. `find_group` finds that subgroup
again. The processes of an attempt cannot leave their group.

Sources: cgroup-v2 in the kernel's documentation; CGROUP_DELEGATION of systemd.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from zerotoolsd.supervisor.attempt_plan import UNIT_PREFIX

REMOVE_SECONDS = 2.0
OLD_SECONDS = 86400.0


def group_name(job_id: int, attempt: int, token: str) -> str:
    """Return the name of the attempt's group, unique on the machine."""
    return f"{PREFIX}{job_id}-{attempt}-{token[:8]}"


class AttemptGroup(NamedTuple):
    """The control group of one attempt, at the path `path`. `wanted` has the limits that were set,
    keyed by name.
    """

    path: Path
    wanted: Mapping[str, int] = MappingProxyType({})

    @property
    def procs_path(self) -> str:
        """The path of `cgroup.procs`. A process that writes 0 to this file enters the group."""
        return str(self.path / PROCS)

    def pids(self) -> list[int]:
        """Return the pids of all processes in the group and in its subgroups."""
        found = []
        for directory in self._directories():
            with suppress(OSError, ValueError):
                found += [int(pid) for pid in (directory / PROCS).read_text("ascii").split()]
        return found

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group at once, if Linux is 5.14 or newer."""
        with suppress(OSError):
            write_setting(self.path / "cgroup.kill", "1")

    def remove(self, seconds: float = REMOVE_SECONDS) -> bool:
        """Remove the control group if it has no processes, and return whether it is gone.

        A process that is ending stays in its group for a moment, so the removal is tried for
        `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            for directory in reversed(self._directories()):
                with suppress(OSError):
                    directory.rmdir()
            if not self.path.exists():
                return True
            if self.pids() or time.monotonic() > deadline:
                return False
            time.sleep(0.01)

    def _directories(self) -> list[Path]:
        return [Path(place) for place, _, _ in os.walk(self.path)]

    def memory_kills(self) -> int:
        """Return how many of the group's processes the kernel killed at the memory limit."""
        return self._event("memory.events", "oom_kill")

    def refused_processes(self) -> int:
        """Return how often the kernel refused to create a process because of the process limit."""
        return self._event("pids.events", "max")

    def _event(self, name: str, word: str) -> int:
        try:
            lines = (self.path / name).read_text("ascii").splitlines()
            return next(int(line.split()[1]) for line in lines if line.split()[:1] == [word])
        except (OSError, ValueError, IndexError, StopIteration):
            return 0

    @property
    def memory_words(self) -> str | None:
        """Return text such as `its memory limit of 32 GiB` if the kernel killed processes of the
        group because of the memory limit; None otherwise.
        """
        if not self.memory_kills() or MEMORY not in self.wanted:
            return None
        return f"its memory limit of {format_bytes(self.wanted[MEMORY])}"

    @property
    def processes_words(self) -> str | None:
        """Return a sentence about the process limit if the kernel refused to create a process
        because of it; None otherwise.
        """
        refused = self.refused_processes()
        if not refused or PROCESSES not in self.wanted:
            return None
        most = self.wanted[PROCESSES]
        return f"limits.processes = {most} kept it from starting a process {refused} times"


def make_group(
    name: str, wanted: Mapping[str, int], own: Collection[int], root: Path = Path("/")
) -> AttemptGroup:
    """Create the control group `name` with the limits `wanted`, and return it.

    The kernel may require that no process is in the parent group. If so, the processes with the
    pids `own` are moved to a subgroup. Raises OSError, and NotDelegated if this process may not
    create the group or set the limits.
    """
    place = find_delegation(root)
    if wanted:
        place.enable_controllers(controllers_of(wanted), own)
    return _create_group(place, name, wanted, root)


def _create_group(
    place: Delegation, name: str, wanted: Mapping[str, int], root: Path
) -> AttemptGroup:
    _clear(place.directory)
    group = AttemptGroup(place.directory / name, wanted)
    group.path.mkdir(exist_ok=True)
    try:
        for file, value in limit_settings(wanted, root):
            write_setting(group.path / file, value)
    except OSError as error:
        group.remove()
        raise NotDelegated(f"{group.path / file} = {value}: {error.strerror}") from None
    return group


def _clear(directory: Path) -> None:
    """Remove the empty control groups in `directory` that were left behind when a daemon was
    killed.

    Groups younger than OLD_SECONDS stay, because a process may be about to enter one of them.
    """
    with suppress(OSError):
        for entry in os.scandir(directory):
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat().st_mtime < time.time() - OLD_SECONDS:
                with suppress(OSError):  # it is not empty
                    os.rmdir(entry.path)  # noqa: PTH106


def find_group(token: str, root: Path = Path("/")) -> AttemptGroup | None:
    """Return the control group that the user root created for the attempt with this `token`; None
    if no such group exists.
    """
    try:
        names = os.scandir(find_delegation(root).directory)
    except (NotDelegated, OSError):
        return None
    with names:
        for entry in names:
            if entry.name.startswith(PREFIX) and entry.name.endswith(f"-{token[:8]}"):
                return AttemptGroup(Path(entry.path))
    return None


def read_group(path: object, token: str, root: Path = Path("/")) -> AttemptGroup | None:
    """Return the control group at `path`, a path from the attempt's record; None if that group does
    not belong to the attempt with this `token`.

    The path in the record is not trusted, because a job can write into its records.
    """
    if not isinstance(path, str) or ".." in path.split("/"):
        return None
    found = Path(path)
    try:
        if not found.is_relative_to(mounted_hierarchy(root)):
            return None
    except NotDelegated:
        return None
    is_ours = found.name.startswith(PREFIX) and found.name.endswith(f"-{token[:8]}")
    return AttemptGroup(found) if is_ours and (found / PROCS).is_file() else None


MEMORY, MEMORY_HIGH, PROCESSES = "memory", "memory_high", "processes"
IO_WEIGHT, IO_READ, IO_WRITE = "io_weight", "io_read", "io_write"
_CONTROLLERS = {
    MEMORY: "memory",
    MEMORY_HIGH: "memory",
    PROCESSES: "pids",
    IO_WEIGHT: "io",
    IO_READ: "io",
    IO_WRITE: "io",
}
_RATES = {IO_READ: "rbps", IO_WRITE: "wbps"}
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md")
"""Prefixes of the names of block devices that are no disks, or that consist of other disks.
Limits are set on the underlying disks.
"""


def controllers_of(limits: Mapping[str, int]) -> set[str]:
    """Return the names of the cgroup controllers that these limits need."""
    return {_CONTROLLERS[name] for name in limits}


def limit_settings(limits: Mapping[str, int], root: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """Yield (file name, value) for each limit: the name of a file in a control group's directory,
    and the text to write into that file.

    `root` is the directory that contains /sys.
    """
    if MEMORY_HIGH in limits:
        yield "memory.high", str(limits[MEMORY_HIGH])
    if MEMORY in limits:
        yield "memory.max", str(limits[MEMORY])
        # When one rank is killed, the others wait for it: kill all of them, or none.
        yield "memory.oom.group", "1"
    if PROCESSES in limits:
        yield "pids.max", str(limits[PROCESSES])
    if IO_WEIGHT in limits:
        yield "io.weight", f"default {limits[IO_WEIGHT]}"
    rates = " ".join(f"{word}={limits[name]}" for name, word in _RATES.items() if name in limits)
    if rates:
        for device in _disks(root):
            yield "io.max", f"{device} {rates}"


def _disks(root: Path) -> Iterator[str]:
    for entry in sorted((root / "sys/block").iterdir()):
        if not entry.name.startswith(_NO_DISKS):
            yield (entry / "dev").read_text(encoding="ascii").strip()


def format_bytes(count: int) -> str:
    """Format a number of bytes for people: `32 GiB`, `1.5 GiB`, `300 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


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
    """This process may not create control groups or set limits. The message gives the reason."""


class Delegation(NamedTuple):
    """A control group in which this process may create subgroups."""

    directory: Path

    def refuse_unlimited(self, wanted: Collection[str], own: Collection[int] = ()) -> None:
        """Raise NotDelegated if the cgroup controllers `wanted` cannot be enabled for the subgroups
        of this group.

        `own` are the pids of processes that will leave the group.
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
        """Return whether this is the root control group of the machine. Only the root group may
        have processes and enabled controllers at the same time.
        """
        return not (self.directory / "cgroup.type").exists()

    def enable_controllers(self, wanted: Collection[str], own: Collection[int]) -> None:
        """Enable the cgroup controllers `wanted` for the subgroups of this group.

        The kernel allows this only if the group itself has no processes. So the processes `own`
        (pids) are first moved into a subgroup. Raises NotDelegated and OSError.
        """
        self.refuse_unlimited(wanted, own)
        missing = set(wanted) - set(_words(self.directory / SUBTREE))
        if not missing:
            return
        leaf = self.directory / LEAF
        for pid in sorted(set(_pids(self.directory)) & set(own)):
            leaf.mkdir(exist_ok=True)
            write_setting(leaf / PROCS, str(pid))
        for name in sorted(missing):
            write_setting(self.directory / SUBTREE, f"+{name}")


def write_setting(path: Path, text: str) -> None:
    """Write one value into a file of the cgroup file system. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def find_delegation(root: Path = Path("/"), mark: GetMark = os.getxattr) -> Delegation:
    """Return the group in which this process may create subgroups. Raises NotDelegated.

    `root` is the directory that contains /sys and /proc. `mark` reads an extended attribute of a
    file, by which systemd marks delegated groups.
    """
    mount, top = _mount(root)
    own = _own_group(root)
    inside = own.removeprefix(top.rstrip("/")) if own.startswith(top.rstrip("/") + "/") else None
    if inside is None or "/.." in own:
        raise NotDelegated(f"the control group {own} is outside {mount}")
    place = mount / inside.lstrip("/")
    if _is_delegated(place):
        return Delegation(place)
    if (root / "run/systemd/system").is_dir():
        # Search no further up: the group of a user's systemd is delegated too, but to that systemd.
        found = next((p for p in _upwards(place, mount) if p.suffix in _UNITS), None)
        if found is None or not (found.name.startswith(UNIT_PREFIX) or _is_marked(found, mark)):
            raise NotDelegated(f"systemd has not delegated the control group {own} (Delegate=yes)")
        place = found
    if not (os.access(place, os.W_OK | os.X_OK) and os.access(place / PROCS, os.W_OK)):
        raise NotDelegated(f"the control group {own} may not be written by uid {os.geteuid()}")
    return Delegation(place)


def _is_delegated(place: Path) -> bool:
    """Return whether the user root created the group `place` for an attempt of the current user and
    made this user its owner.
    """
    try:
        return place.name.startswith(PREFIX) and place.stat().st_uid == os.geteuid() != 0
    except OSError:
        return False


def mounted_hierarchy(root: Path = Path("/")) -> Path:
    """Return the mount point of cgroup v2. Raises NotDelegated if it is not mounted."""
    return _mount(root)[0]


def available_controllers(directory: Path) -> list[str]:
    """Return the names of the cgroup controllers that are available in the group `directory`."""
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
    """Return the mount point of cgroup v2, and the group mounted there. Raises NotDelegated."""
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


def _own_group(root: Path) -> str:
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
