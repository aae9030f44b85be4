"""The kernel's state of a process that reports nothing itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel and cannot be interrupted",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}
_LONGEST = 4000


@dataclass(frozen=True)
class Activity:
    """`state` is the kernel's letter, `tracer` the pid of a debugger, and `work` grows while it
    computes, reads or writes: seconds of processor time, and a second for each 512 KiB."""

    state: str
    tracer: int = 0
    wchan: str = ""
    work: float = 0.0

    @property
    def words(self) -> str:
        """`is stopped by a signal (state T)`."""
        where = f" in {self.wchan}" if self.state == "D" and self.wchan else ""
        by = f", pid {self.tracer}" if self.tracer else ""
        return f"{_STATES.get(self.state, 'is')}{where}{by} (state {self.state})"


def activity(pid: int) -> Activity | None:
    """Return the activity of process `pid`; None if it is gone or /proc hides it."""
    stat = _read(pid, "stat")
    if ")" not in stat:
        return None
    parts = stat[stat.rindex(")") + 2 :].split()
    cpu = (int(parts[11]) + int(parts[12])) / TICKS
    tracer = _field(_read(pid, "status"), "TracerPid:")
    io = _read(pid, "io")
    moved = sum(_field(io, f"{name}:") for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    wchan = _read(pid, "wchan").strip()
    return Activity(parts[0], tracer, "" if wchan == "0" else wchan, cpu + moved / 2**19)


def report(pid: int) -> str:
    """Return lines for the log: the state, the kernel code that it waits in, and the threads."""
    found = activity(pid)
    if found is None:
        return f"pid {pid} is gone"
    lines = [f"pid {pid} {found.words}"]
    for name in ("wchan", "syscall", "stack"):
        text = _read(pid, name).strip()
        if text and text != "0":
            lines.append(f"  /proc/{pid}/{name}: " + text.replace("\n", "\n    "))
    return "\n".join(lines)[:_LONGEST]


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        if line.startswith(name):
            value = line[len(name) :].strip()
            return int(value) if value.isdecimal() else 0
    return 0


def _read(pid: int, name: str) -> str:
    """Return the text of a file of /proc; empty if it cannot be read (only root reads `stack`)."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
