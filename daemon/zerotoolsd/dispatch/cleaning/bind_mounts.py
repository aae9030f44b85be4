"""Resolves bind mounts (`mount --bind`), which give one directory several paths without links.

A path below any of them gets one name: the path by the first mount.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """`root`, a directory of the file system on `device`, is mounted at `place`."""

    device: bytes
    root: str
    place: str


class Mounts:
    """The current mounts of this process."""

    def __init__(self, text: bytes | None = None) -> None:
        """Read the mounts. `text` replaces the contents of `MOUNTS`."""
        try:
            lines = (MOUNTS.read_bytes() if text is None else text).splitlines()
        except OSError:
            lines = []
        self._all = [_mount(line.split()) for line in lines if len(line.split()) > 4]

    def first_name(self, path: str) -> str:
        """Return `path`, which has no links, by its first mount."""
        holds = [each for each in self._all if _is_in(path, each.place)]
        if not holds:
            return path
        # Of several mounts at one path, only the last is visible.
        own = max(enumerate(holds), key=lambda each: (len(each[1].place), each[0]))[1]
        inside = _joined(own.root, path[len(own.place.rstrip("/")) :])
        for each in self._all:
            if each.device == own.device and _is_in(inside, each.root):
                return _joined(each.place, inside[len(each.root.rstrip("/")) :])
        return path


def _mount(fields: list[bytes]) -> Mount:
    root, place = (_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), each) for each in fields[3:5])
    names = (each.decode("utf-8", "surrogateescape") for each in (root, place))
    return Mount(fields[2], *names)


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


def _joined(place: str, below: str) -> str:
    return f"{place.rstrip('/')}{below}" or "/"
