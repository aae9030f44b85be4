"""The texts that evaluations of a job generated, read in a child process, as the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from zerotools.jobs.tables.eval import PREDICTIONS
from zerotools.runs import checkpoint_dirs
from zerotoolsd.supervisor.durable import open_regular

LONGEST_TEXT = 4000
LONGEST_LINE = 1 << 20
TEXTS = ("prompt", "reference", "prediction")
_SUFFIX = ".jsonl"


def prediction_rows(output_dir: str, step: int | None, first: int, count: int) -> dict[str, Any]:
    """Return the `steps` with such texts, and `count` rows of one of them (None: the newest).

    Rows begin with number `first`; `more`: whether others follow. Raises OSError.
    """
    steps = _steps(Path(output_dir) / PREDICTIONS)
    chosen = max(steps, default=None) if step is None else step
    rows: list[dict[str, Any]] = []
    more = False
    if chosen in steps:
        path = Path(output_dir) / PREDICTIONS / f"{checkpoint_dirs.directory_name(chosen)}{_SUFFIX}"
        found = list(islice(_rows(path), first, first + count + 1))
        rows, more = found[:count], len(found) > count
    return {"steps": sorted(steps), "step": chosen, "first": first, "rows": rows, "more": more}


def _steps(directory: Path) -> set[int]:
    try:
        names = os.listdir(directory)  # noqa: PTH208  # names alone are needed
    except (FileNotFoundError, NotADirectoryError):
        return set()
    found = (
        checkpoint_dirs.step_of(name.removesuffix(_SUFFIX))
        for name in names
        if name.endswith(_SUFFIX)
    )
    return {step for step in found if step is not None}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that are objects, with each text cut to the length that a page shows."""
    try:
        descriptor = open_regular(path)
    except (ValueError, FileNotFoundError):  # a link or a pipe, or removed since
        return
    with os.fdopen(descriptor, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            try:
                tree = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(tree, dict):
                texts = {name: _text(tree.get(name)) for name in TEXTS}
                number = tree.get("example")
                yield {"example": number if type(number) is int else None, **texts}


def _text(value: object) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) else None
