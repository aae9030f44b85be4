"""What the records of another user's job say of processes, as far as it can be true.

A record lies in a directory of the user, who can write anything into it. A process that it names
is believed to be of the attempt only if it is the user's: else a forged record would have the
daemon end, or keep GPUs for, what belongs to somebody else.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.accounts.rights import owner_of
from zerotoolsd.supervisor.ending.left_behind import MOST_NAMED
from zerotoolsd.supervisor.procfs import boot_id, is_of_uid, read_process, signal_process

LARGEST_KEPT = 256 * 1024
"""Bytes of a record, as JSON."""


def believed(run_dir: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """`record` with those lines of `unkillable` alone that name living processes of the owner of
    `run_dir`. What is not in the kernel's sleep is ended here: a supervisor would have done it.
    Of one that is larger than any supervisor writes, the largest values are left out: it is kept in
    the queue, which is everybody's."""
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
