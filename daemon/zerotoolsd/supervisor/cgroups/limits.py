"""The limits of an attempt, in the forms of `attempt.json` and of the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

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
"""Devices that are not disks, or are made of disks: a limit on them applies to the disks below."""


def controllers_of(limits: Mapping[str, int]) -> set[str]:
    """Return the controllers that these limits need."""
    return {_CONTROLLERS[name] for name in limits}


def settings(limits: Mapping[str, int], root: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """Yield (file of the group, value) for each limit; `root` is the directory that contains
    /sys."""
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


def gibibytes(count: int) -> str:
    """Format a size for people: `32 GiB`, `1.5 GiB`, `300 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
