"""Checks the processes that another user's records name.

A record is in a directory of the user, who can write anything into it. A process that it names
counts as part of the attempt only if it belongs to the user. Otherwise a forged record could make
the daemon end the processes of other users, or keep GPUs for them.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.ending.left_behind import MOST_NAMED
from zerotoolsd.supervisor.procfs import boot_id, is_of_uid, read_process, signal_process
from zerotoolsd.users.open_as_user import owner_of

LARGEST_KEPT = 256 * 1024
"""Longest stored record in bytes, as JSON."""


def sanitize(run_dir: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `record` with only valid lines of `unkillable`.

    Valid lines name living processes of the owner of `run_dir`. Those that do not sleep in the
    kernel are killed here, as a supervisor would have done. If the record is larger than any of a
    supervisor, its largest values are removed, because it is stored in the queue of all users.
    """
    uid = owner_of(run_dir)
    if uid is None:
        return record
    record = _bounded(record)
    lines = record.get("unkillable")
    if not lines:
        return record
    left = [line for line in lines[:MOST_NAMED] if _is_left(line, uid)]
    return {**record, "unkillable": left}


def _bounded(record: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes = {key: len(key) + len(json.dumps(value)) for key, value in record.items()}
    left = sum(sizes.values())
    dropped = set()
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if left <= LARGEST_KEPT:
            break
        dropped.add(key)
        left -= sizes[key]
    return {key: value for key, value in record.items() if key not in dropped}


def _is_left(line: Mapping[str, Any], uid: int) -> bool:
    pid, start = line["pid"], line["start_ticks"]
    if line.get("boot_id") != boot_id() or not is_of_uid(pid, uid):
        return False
    with suppress(PermissionError):
        if not signal_process(pid, start, signal.SIGKILL, uid=uid):
            return False
    found = read_process(pid)
    return found is not None and found.start_ticks == start and not found.is_over
