"""Finds the mount of a path in the kernel's mount table. The path itself is not accessed.

Symbolic links in a path are not resolved, because this needs an access, which may hang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_AUTOFS = "autofs"


@dataclass(frozen=True)
class MountPoint:
    """A line of the mount table: `device` is the device number as text, `kind` the type of file
    system.
    """

    path: str
    device: str
    kind: str


ReadMounts = Callable[[], Sequence[MountPoint]]


def read_mounts(table: Path = MOUNTINFO) -> list[MountPoint]:
    """Return all mounts, in the order of the kernel's table. The result is empty if the table
    cannot be read.
    """
    try:
        lines = table.read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := _mount_point(line)) is not None]


def _mount_point(line: str) -> MountPoint | None:
    words = line.split(" ")
    try:
        kind = words[words.index("-", 6) + 1]
        return MountPoint(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[4]), words[2], kind)
    except (IndexError, ValueError):
        return None


def mounts_of(named: object, table: Iterable[MountPoint]) -> set[str]:
    """Return the mount points of all absolute paths in `named`, which is a path, or a list, dict or
    dataclass that contains paths. Paths on the root file system are left out.

    For a path below an automount directory (autofs), return this directory, because the mounts
    below it appear and disappear.
    """
    points = {point.path: point for point in table}
    root = points.get("/")
    found = (_mount_of(path, points) for path in _paths_in(named))
    return {p.path for p in found if p is not None and (root is None or p.device != root.device)}


def _mount_of(path: str, points: dict[str, MountPoint]) -> MountPoint | None:
    on = None
    for parent in reversed((Path(path), *Path(path).parents)):
        point = points.get(str(parent))
        if point is not None:
            on = point
            if point.kind == _AUTOFS:
                break
    return on


def _paths_in(named: object) -> Iterator[str]:
    if isinstance(named, str):
        if named.startswith("/") and "\0" not in named:
            yield os.path.normpath(named)
    elif isinstance(named, os.PathLike):
        yield from _paths_in(os.fspath(named))
    elif isinstance(named, dict):
        for each in named.values():
            yield from _paths_in(each)
    elif isinstance(named, list | tuple | set | frozenset):
        for each in named:
            yield from _paths_in(each)
    elif is_dataclass(named):
        for field in fields(named):
            yield from _paths_in(getattr(named, field.name))


def mount_responds(mount: str) -> bool:
    """Return True when the file system at `mount` responds. If it never responds, this call
    hangs.
    """
    with suppress(OSError):  # that is an answer, too
        os.statvfs(mount)
    return True
