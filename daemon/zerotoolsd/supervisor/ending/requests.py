"""`request.json`: the daemon asks an attempt to save and stop.

Its room on the disk is taken when the attempt is prepared, so that a job which fills a disk can be
cancelled. A request that cannot be written all the same is tried again, until it is there or nobody
is left to read it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.last_word.reserved import REQUEST_BYTES, put, reserve
from zerotoolsd.supervisor.plan import REQUEST, STOP


def reserve_request(run_dir: Path) -> None:
    """Take the room of a request, and of what the ranks are told then, unless that was done. Raises
    OSError."""
    for path in (run_dir / REQUEST, run_dir / STOP):
        if not os.path.lexists(path):
            reserve(path, 0, REQUEST_BYTES)


def write_request(run_dir: Path, reason: str, grace_seconds: float | None = None) -> None:
    """Ask durably; once more is harmless, also with a shorter grace. Raises OSError."""
    record: dict[str, object] = {"reason": reason}
    if grace_seconds is not None:
        record["grace_seconds"] = grace_seconds
    if _known(run_dir) == record:
        return
    put(run_dir / REQUEST, json.dumps(record))


def _known(run_dir: Path) -> object:
    try:
        return read_json(run_dir / REQUEST, LARGEST_RECORD)
    except ValueError:
        return None
