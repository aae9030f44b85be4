"""What the records of another user's job say of processes, as far as it can be true.

A record lies in a directory of the user, who can write anything into it. A process that it names
is believed to be of the attempt only if it is the user's: else a forged record would have the
daemon end, or keep GPUs for, what belongs to somebody else.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.accounts.rights import owner_of
from zerotoolsd.supervisor.ending.left_behind import MOST_NAMED
from zerotoolsd.supervisor.procfs import boot_id, is_of_uid, read_process, signal_process


def believed(run_dir: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """`record` with those lines of `unkillable` alone that name living processes of the owner of
    `run_dir`. What is not in the kernel's sleep is ended here: a supervisor would have done it."""
    uid = owner_of(run_dir)
    lines = record.get("unkillable")
    if uid is None or not lines:
        return record
    left = [line for line in lines[:MOST_NAMED] if _is_left(line, uid)]
    return {**record, "unkillable": left}


def _is_left(line: Mapping[str, Any], uid: int) -> bool:
    pid, start = line["pid"], line["start_ticks"]
    if line.get("boot_id") != boot_id() or not is_of_uid(pid, uid):
        return False
    with suppress(PermissionError):
        if not signal_process(pid, start, signal.SIGKILL, uid=uid):
            return False
    found = read_process(pid)
    return found is not None and found.start_ticks == start and not found.is_over
