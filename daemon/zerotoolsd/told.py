"""What the ranks of an attempt told its supervisor, by the end of `progress.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.plan import PROGRESS

_TAIL_BYTES = 32 * 1024


def last_step(run_dir: Path) -> Mapping[str, Any] | None:
    """The newest step that a rank told of."""
    messages = (_message(line) for line in reversed(_last_lines(run_dir / PROGRESS)))
    return next((m for m in messages if m is not None and m.get("event") == "step"), None)


def _last_lines(path: Path) -> list[bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return []


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
