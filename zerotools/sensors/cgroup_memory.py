"""What the control groups of this process still let it take of memory (cgroup v2).

A daemon in a container or a unit with `MemoryMax=` meets that limit long before the machine is out
of memory. Of each group from its own up to the root: `memory.max` less `memory.current`, of which
`inactive_file` of `memory.stat` does not count, since the kernel gives it back first. Source: Linux
Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def headroom_bytes(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The least of all groups; None: none has a limit, or this is no cgroup v2."""
    return min(
        (left for group in _groups(proc, root) if (left := _left(group)) is not None), default=None
    )


def _groups(proc: Path, root: Path) -> Iterator[Path]:
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    own = next((line[3:] for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    group = root / own.lstrip("/")
    yield group
    while group != root and root in group.parents:
        group = group.parent
        yield group


def _left(group: Path) -> int | None:
    try:
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        if not most.isdecimal():
            return None
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    words = dict(zip(stat[::2], stat[1::2], strict=False))
    file = words.get("inactive_file", "0")
    return max(0, int(most) - used + (int(file) if file.isdecimal() else 0))
