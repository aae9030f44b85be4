"""`metrics.jsonl`: the metrics of a run, one JSON object per line: one for each step, and more for
values that are measured after it.

An attempt that resumes from an earlier step replaces the lines from that step, so that the file is
the same as after an uninterrupted run. Lines of other writers (objects without a step), and those
before them, are never changed. A line is in the kernel's hands when `append` returns, and on the
disk after `sync`. Standard library only, and no newer syntax than that of Python 3.9: programs of
users write with this too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zerotools.io.telemetry.append import write_whole

METRICS = "metrics.jsonl"
_BLOCK = 1 << 16


class MetricsLog:
    """Appends the lines of one run to `path`; its directory is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(self, step: int, fields: dict[str, Any]) -> None:
        """Write the line of `step`; values that are not finite become null.

        Raises:
            OSError: the disk is full, or the directory is not ours.
        """
        if self._file is None:
            self._file = _open_before(self.path, step)
        line = json.dumps({"step": step, **fields}, default=str)
        if "NaN" in line or "Infinity" in line:
            line = json.dumps(json.loads(line, parse_constant=lambda _: None))
        try:
            write_whole(self._file, line.encode() + b"\n")
        except OSError as error:
            error.filename = str(self.path)
            raise

    def sync(self) -> None:
        """Flush the written lines to the disk. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_before(path: Path, step: int) -> int:
    """Return `path`, open for appending, without its lines of `step` and later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    file = os.open(path, flags, 0o644)
    try:
        end = _end_of_lines_before(file, step)
        if end < os.fstat(file).st_size:
            os.ftruncate(file, end)
    except BaseException:  # closed, and raised again
        os.close(file)
        raise
    return file


def _end_of_lines_before(file: int, step: int) -> int:
    """Return the end of the last complete line of a step before `step`. Search from the end."""
    start = os.fstat(file).st_size
    held, stop = b"", 0  # held[:stop] is file[start : start + stop], and not judged yet
    while True:
        newline = held.rfind(b"\n", 0, max(stop - 1, 0))
        if newline < 0 and start > 0:
            size = min(_BLOCK, start)
            start -= size
            held = os.pread(file, size, start) + held[:stop]
            stop = len(held)
            continue
        line = held[newline + 1 : stop]
        if not line:
            return 0
        if line.endswith(b"\n") and _stays(line, step):
            return start + stop
        stop = newline + 1


def _stays(line: bytes, step: int) -> bool:
    """Return whether a line is of an earlier step, or another writer's. A line that is not an
    object was torn."""
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(tree, dict):
        return False
    found = tree.get("step")
    return "step" not in tree or (isinstance(found, int) and found < step)
