"""Describes the processes of an attempt that survived SIGKILL, with the reason.

The kernel ends a process when it next runs. A process in uninterruptible sleep (state D: waiting
for a file server or a driver) does not run. It holds its memory and its GPU until it wakes up, but
its program never runs again. A process of another user (a setuid program) cannot be killed by this
user: it continues, and is marked `refused`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.gpu_locks.holders import by_uid
from zerotoolsd.supervisor.procfs import Process, boot_id, read_process

_LONGEST_PLACE = 64
MOST_NAMED = 100
"""Most processes to name for one attempt: the record has a limited size."""


def left_behind(
    process: Process, *, rank: int | None = None, refused: bool = False
) -> dict[str, Any]:
    """Return the record of `process`, which is alive although it was killed."""
    return {
        "pid": process.pid,
        "start_ticks": process.start_ticks,
        "boot_id": boot_id(),
        "name": process.name,
        "state": process.state,
        "place": _place(process.pid),
        "uid": _uid(process.pid),
        "rank": rank,
        "refused": refused,
        "since": time.time(),
    }


def _place(pid: int) -> str | None:
    """Return the kernel function that the process sleeps in, if the kernel shows it."""
    try:
        text = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text[:_LONGEST_PLACE] if text not in ("", "0") else None


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116  # once for each of many
    except OSError:
        return None


def is_still_alive(line: Mapping[str, Any]) -> bool:
    """Return whether the process in a line of `left_behind` is alive."""
    if line.get("boot_id", boot_id()) != boot_id():
        return False
    now = read_process(int(line["pid"]))
    return now is not None and now.start_ticks == line["start_ticks"] and not now.is_over


def in_words(line: Mapping[str, Any], called: Callable[[int], str] = by_uid) -> str:
    """Format a record: `pid 123 (python3) of rank 0, in state D (nfs_wait_bit_killable)`.

    `called` returns the name of a uid.
    """
    name, rank = plain_name(line.get("name")), line.get("rank")
    words = f"pid {line['pid']}" + (f" ({name})" if name else "")
    words += f" of rank {rank}" if isinstance(rank, int) else ""
    if line.get("refused") is True:
        uid = line.get("uid")
        return f"{words}, of {called(uid) if type(uid) is int else 'another user'}"
    state, place = plain_name(line.get("state")), plain_name(line.get("place"))
    return words + (f", in state {state}" if state else "") + (f" ({place})" if place else "")


def plain_name(value: object) -> str:
    """Return one short line without control characters.

    A program chooses its name, and may write the record.
    """
    return (
        "".join(c for c in value[:_LONGEST_PLACE] if c.isprintable())
        if isinstance(value, str)
        else ""
    )
