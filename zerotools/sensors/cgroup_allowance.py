"""Reads the memory that the control groups (cgroups) of this process still allow, their pressure,
and the processor cores that they allow.

A daemon in a container or in a unit with `MemoryMax=` reaches that limit long before the machine is
out of memory. These values are read for each group, from that of the process up to the root:

    left        the lower one of `memory.max` and `memory.high`, minus `memory.current`. The bytes
                `inactive_file` of `memory.stat` count as left, because the kernel frees them first.
    reclaims    `high` and `max` of `memory.events.local`: how often the group reached its own
                limit, so that the kernel reclaimed memory while programs waited. This is usual
                with cached files; it shows a shortage only if little memory is left.
    ooms        `oom` of `memory.events.local`: how often the reclaimed memory was not enough
    stalled     `full` of `memory.pressure`, for a group with a limit: the share of time in which
                all tasks waited for memory

`memory.events` without `.local` also counts groups below: jobs may reach their own limits. Version
1 of cgroups has `memory.limit_in_bytes`, `memory.usage_in_bytes`, `total_inactive_file`,
`memory.failcnt`, and `oom_kill` in `memory.oom_control`; it has no stalls. Sources: Linux
Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files", and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.sensors.host_sensor import read_stall

_NO_LIMIT = 1 << 62
"""In version 1 of cgroups, a limit of at least this number of bytes means no limit."""


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The memory that the control groups of a process allow.

    Attributes:
        left_bytes, limit_bytes: the values of the group with the least memory left; None if no
            group has a limit.
        reclaims, ooms: the sums over all groups since they were made; None if the kernel does not
            count them.
        stalled_percent: the percentage of the last 10 s in which all tasks of a group waited for
            memory; None if unknown.
    """

    left_bytes: int | None = None
    limit_bytes: int | None = None
    reclaims: int | None = None
    ooms: int | None = None
    stalled_percent: float | None = None


def read_cgroup_memory(
    proc: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
    place: Callable[[str], str] = str,
) -> CgroupMemory:
    """Read the memory of the control groups of the process with the file `proc` (/proc/PID/cgroup).

    `place` maps the path of the process's group to the path of the group to read (default: the same
    path).
    """
    found = [_second(group) for group in _groups(proc, "", root, place)]
    found += [_first(group) for group in _groups(proc, "memory", root / "memory", place)]
    limited = [each for each in found if each.left_bytes is not None]
    tightest = min(limited, key=lambda each: each.left_bytes or 0, default=CgroupMemory())
    return CgroupMemory(
        left_bytes=tightest.left_bytes,
        limit_bytes=tightest.limit_bytes,
        reclaims=_sum(each.reclaims for each in found),
        ooms=_sum(each.ooms for each in found),
        stalled_percent=max(
            (each.stalled_percent for each in found if each.stalled_percent is not None),
            default=None,
        ),
    )


def _groups(proc: Path, controller: str, root: Path, place: Callable[[str], str]) -> Iterator[Path]:
    """Yield the directory of the process's group in the hierarchy of `controller`, and of all
    groups above it.

    Version 2 of cgroups has one hierarchy for all controllers; its `controller` is the empty
    string. `place` is as in `read_cgroup_memory`.
    """
    try:
        lines = [line.split(":", 2) for line in proc.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    named = (path for *_, said, path in lines if said == controller and path.startswith("/"))
    if (own := next(named, None)) is None:
        return
    group = root / place(own).lstrip("/")
    yield group
    while group != root and root in group.parents:
        group = group.parent
        yield group


def _second(group: Path) -> CgroupMemory:
    limits = [_number(group / f"memory.{name}") for name in ("max", "high")]
    limit = min((each for each in limits if each is not None), default=None)
    events = _counts(group / "memory.events.local")
    stall = None if limit is None else read_stall(group / "memory.pressure")
    return CgroupMemory(
        left_bytes=_available_bytes(group / "memory.current", limit, group, "inactive_file"),
        limit_bytes=limit,
        reclaims=_sum((events.get("high"), events.get("max"))),
        ooms=events.get("oom"),
        stalled_percent=None if stall is None else stall.full_avg10_percent,
    )


def _first(group: Path) -> CgroupMemory:
    limit = _number(group / "memory.limit_in_bytes")
    limit = None if limit is None or limit >= _NO_LIMIT else limit
    return CgroupMemory(
        left_bytes=_available_bytes(
            group / "memory.usage_in_bytes", limit, group, "total_inactive_file"
        ),
        limit_bytes=limit,
        reclaims=_number(group / "memory.failcnt"),
        ooms=_counts(group / "memory.oom_control").get("oom_kill"),
    )


def _available_bytes(usage: Path, limit: int | None, group: Path, given_back: str) -> int | None:
    used = _number(usage)
    if limit is None or used is None or not (stat := _counts(group / "memory.stat")):
        return None
    return max(0, limit - used + stat.get(given_back, 0))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _counts(path: Path) -> Mapping[str, int]:
    """Return the numbers in a file with lines `NAME NUMBER`, keyed by name."""
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return {}
    pairs = zip(words[::2], words[1::2], strict=False)
    return {word: int(number) for word, number in pairs if number.isdecimal()}


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """Return the number of whole cores that this process may use, at least one. In contrast,
    `os.cpu_count()` also counts cores that this process may not use.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min((cores, *_quotas(membership, cgroups)))))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the number of cores that each cgroup of this process allows. Source: cgroups(7),
    versions 1 and 2."""
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
    """Yield quota / period, the number of cores. `words` has both numbers, in microseconds. If
    there is no quota (`max`, or -1), yield nothing."""
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
