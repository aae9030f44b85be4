"""The control group of one attempt: whatever its processes do, they stay in it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zerotoolsd.supervisor.cgroups import delegation, limits
from zerotoolsd.supervisor.cgroups.delegation import PREFIX, PROCS, Delegation, NotDelegated, write

REMOVE_SECONDS = 2.0
OLD_SECONDS = 86400.0


def group_name(job_id: int, attempt: int, token: str) -> str:
    """Return the name of the attempt's group, unique on the machine."""
    return f"{PREFIX}{job_id}-{attempt}-{token[:8]}"


@dataclass(frozen=True)
class AttemptGroup:
    """`wanted` are the limits that were set."""

    path: Path
    wanted: Mapping[str, int] = field(default_factory=dict)

    @property
    def entrance(self) -> str:
        """The file into which a process writes 0 to enter, before it does anything else."""
        return str(self.path / PROCS)

    def pids(self) -> list[int]:
        """Return the pids of all processes in the group and in groups that these made below it."""
        found = []
        for directory in self._directories():
            with suppress(OSError, ValueError):
                found += [int(pid) for pid in (directory / PROCS).read_text("ascii").split()]
        return found

    def kill(self) -> None:
        """Send SIGKILL to all processes at once, if the kernel can (Linux 5.14)."""
        with suppress(OSError):
            write(self.path / "cgroup.kill", "1")

    def remove(self, seconds: float = REMOVE_SECONDS) -> bool:
        """Remove the group if it is empty, and return whether it is gone.

        Ending processes keep a group for a moment, so this tries for `seconds`.
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
        """Return how many of its processes the kernel killed because of the memory limit."""
        return self._event("memory.events", "oom_kill")

    def refused_processes(self) -> int:
        """Return how often the kernel refused another process."""
        return self._event("pids.events", "max")

    def _event(self, name: str, word: str) -> int:
        try:
            lines = (self.path / name).read_text("ascii").splitlines()
            return next(int(line.split()[1]) for line in lines if line.split()[:1] == [word])
        except (OSError, ValueError, IndexError, StopIteration):
            return 0

    @property
    def memory_words(self) -> str | None:
        """The limit of memory for which its processes were ended; None: they were not."""
        if not self.memory_kills() or limits.MEMORY not in self.wanted:
            return None
        return f"its memory limit of {limits.gibibytes(self.wanted[limits.MEMORY])}"

    @property
    def processes_words(self) -> str | None:
        """The sentence on the process limit that the attempt ran into; None if it did not."""
        refused = self.refused_processes()
        if not refused or limits.PROCESSES not in self.wanted:
            return None
        most = self.wanted[limits.PROCESSES]
        return f"limits.processes = {most} refused it another process {refused} times"


def make_group(
    name: str, wanted: Mapping[str, int], own: Collection[int], root: Path = Path("/")
) -> AttemptGroup:
    """Create the group `name` with these limits; `own` processes move to a leaf if necessary.

    Raises NotDelegated if no group is available, or none with these limits. Raises OSError.
    """
    place = delegation.find(root)
    if wanted:
        place.give(limits.controllers_of(wanted), own)
    return _made(place, name, wanted, root)


def _made(place: Delegation, name: str, wanted: Mapping[str, int], root: Path) -> AttemptGroup:
    _clear(place.directory)
    group = AttemptGroup(place.directory / name, wanted)
    group.path.mkdir(exist_ok=True)
    try:
        for file, value in limits.settings(wanted, root):
            write(group.path / file, value)
    except OSError as error:
        group.remove()
        raise NotDelegated(f"{group.path / file} = {value}: {error.strerror}") from None
    return group


def _clear(directory: Path) -> None:
    """Remove empty groups that killed daemons left long ago; a young one is about to be entered."""
    with suppress(OSError):
        for entry in os.scandir(directory):
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat().st_mtime < time.time() - OLD_SECONDS:
                with suppress(OSError):  # it is not empty
                    os.rmdir(entry.path)  # noqa: PTH106


def find_group(token: str, root: Path = Path("/")) -> AttemptGroup | None:
    """Return the group that root has made below its group for the attempt with `token`."""
    try:
        names = os.scandir(delegation.find(root).directory)
    except (NotDelegated, OSError):
        return None
    with names:
        for entry in names:
            if entry.name.startswith(PREFIX) and entry.name.endswith(f"-{token[:8]}"):
                return AttemptGroup(Path(entry.path))
    return None


def read_group(path: object, token: str, root: Path = Path("/")) -> AttemptGroup | None:
    """Return the group that a record names, if it is the group of the attempt with `token`.

    A job can write into its records, so the path is not trusted.
    """
    if not isinstance(path, str) or ".." in path.split("/"):
        return None
    found = Path(path)
    try:
        if not found.is_relative_to(delegation.mounted(root)):
            return None
    except NotDelegated:
        return None
    is_ours = found.name.startswith(PREFIX) and found.name.endswith(f"-{token[:8]}")
    return AttemptGroup(found) if is_ours and (found / PROCS).is_file() else None
