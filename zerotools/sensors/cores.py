"""The number of processor cores that this process may use, by its affinity and the quotas of its
cgroups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """Return the number of whole cores that this process may use, at least one. `os.cpu_count()`
    also counts cores that are reserved for others.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min((cores, *_quotas(membership, cgroups)))))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the number of cores that each cgroup around this process allows. Source: cgroups(7),
    versions 1 and 2.
    """
    for line in _text(membership).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        inner = Path(os.path.normpath(f"/{path.lstrip('/')}")).relative_to("/")
        if number == "0" and not controllers:
            for directory in (cgroups / inner, *_above(cgroups, inner)):
                yield from _ratio(_text(directory / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            top = cgroups / controllers
            for directory in (top / inner, *_above(top, inner)):
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                yield from _ratio([_text(directory / name).strip() for name in names])


def _above(top: Path, inner: Path) -> Iterator[Path]:
    for parent in inner.parents:
        yield top / parent


def _ratio(words: list[str]) -> Iterator[float]:
    """Yield quota / period, given in microseconds. Without a quota (`max`, or -1) yield nothing."""
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
