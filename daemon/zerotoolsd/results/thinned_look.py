"""Whether a checkpoint was thinned, in the words of its record."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.runs.thinned import read_thinned


def thinned_sentence(path: str) -> str | None:
    """What was dropped of the checkpoint at `path`; None: nothing is known to be. May wait for a
    file system that hangs."""
    try:
        found = read_thinned(Path(path))
    except (BadFile, OSError, ValueError):
        return None
    return None if found is None else found.sentence()
