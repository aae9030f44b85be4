"""Reads the record of a checkpoint that was thinned."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.runs.thinning_record import read_thinned


def thinned_sentence(path: str) -> str | None:
    """Return a sentence on the dropped tensors of the checkpoint at `path`, or None if it has no
    readable record of thinning. May wait for a file system that hangs."""
    try:
        found = read_thinned(Path(path))
    except (BadFile, OSError, ValueError):
        return None
    return None if found is None else found.sentence()
