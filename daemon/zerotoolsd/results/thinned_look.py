"""Reads the record of a checkpoint that was thinned."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.runs.thinned import read_thinned


def thinned_sentence(path: str) -> str | None:
    """Say what was dropped of the checkpoint at `path`; None: nothing that is known. May wait for
    a file system that hangs."""
    try:
        found = read_thinned(Path(path))
    except (BadFile, OSError, ValueError):
        return None
    return None if found is None else found.sentence()
