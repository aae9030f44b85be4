"""The reports of an attempt's ranks, from its `progress.jsonl`, within bounds.

The file is as long as the run. Of very many steps only a regular selection is parsed, and of a very
large file only parts at equal distances are read. Evaluations and checkpoints are few, and all of
those in the read parts are taken. A job may write into its run directory too: only JSON objects
count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.plan import PROGRESS
from zerotoolsd.users.open_as_user import opened

MOST_STEPS = 20_000
MOST_OTHERS = 20_000
"""Messages of each kind that are parsed, approximately."""
MOST_BYTES = 64 << 20
BLOCK = 1 << 18
_STEP = b'"event": "step"'
"""Text of a step as the supervisor writes it; another spelling is parsed too."""


@dataclass(frozen=True)
class StepRecords:
    """Messages in their order; `end` is the byte behind the last whole line. `sampled`: of the
    steps some were left out."""

    records: list[dict[str, Any]]
    end: int = 0
    sampled: bool = False


def read_records(run_dir: Path) -> StepRecords:
    """Return the reports of the attempt in `run_dir`; none if the file cannot be read."""
    try:
        with opened(run_dir) as base, os.fdopen(open_regular(base / PROGRESS), "rb") as file:
            return _read(file.fileno())
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return StepRecords([])


def _read(descriptor: int) -> StepRecords:
    size = os.fstat(descriptor).st_size
    first = os.pread(descriptor, BLOCK, 0)
    lines = size * (first.count(b"\n") or 1) // max(1, len(first))
    stride = max(1, -(-lines // MOST_STEPS))
    records: list[dict[str, Any]] = []
    number = others = end = 0
    newest = b""
    for line, behind in _lines(descriptor, size):
        end = behind
        is_step = _STEP in line
        if is_step:
            newest = b"" if number % stride == 0 else line
            number += 1
        elif (others := others + 1) > MOST_OTHERS:
            continue
        if not (is_step and newest):
            records += _object(line)
    if newest:
        records += _object(newest)
    return StepRecords(records, end, sampled=stride > 1 or size > MOST_BYTES)


def _lines(descriptor: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield complete lines, and the end of each. For a file that is too large, only those of some
    blocks."""
    blocks = -(-size // BLOCK)
    skip = max(1, -(-size // MOST_BYTES))
    rest: bytes | None = b""
    """The line that the block before began; None: its beginning is not known."""
    for block in range(blocks):
        if block % skip and block != blocks - 1:
            rest = None
            continue
        data, at = os.pread(descriptor, BLOCK, block * BLOCK), block * BLOCK
        if rest is None:
            cut = data.find(b"\n") + 1
            if not cut:
                continue
            data, at, rest = data[cut:], at + cut, b""
        *whole, last = data.split(b"\n")
        for line in whole:
            at += len(line) + 1
            yield rest + line, at
            rest = b""
        # An endless line is not kept: its contents are not worth that much memory.
        rest = rest + last if len(rest) + len(last) <= BLOCK else None


def _object(line: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [found] if isinstance(found, dict) else []
