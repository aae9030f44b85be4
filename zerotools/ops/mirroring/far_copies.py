"""Which checkpoints a store has of a run, and which of them go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.formats.detect import refuse_being_written
from zerotools.io.output.far_removal import remove_output
from zerotools.io.output.marker import was_made_of
from zerotools.io.output.writing_name import WRITING
from zerotools.io.stores.store_path import StorePath
from zerotools.io.stores.writing import forget, put_object
from zerotools.runs import checkpoint_dirs
from zerotools.runs.checkpoint_dirs import BEST, LATEST, ResumeChoice
from zerotools.runs.keep_rule import KeepRule


def newest_copy(place: Path, above: int = -1) -> ResumeChoice:
    """The newest checkpoint below `place` that is whole by the sizes of its objects, of a step
    greater than `above`; none that was thinned."""
    return checkpoint_dirs.choose(place, above=above, digests=False, structure=refuse_part)


def refuse_part(directory: Path) -> None:
    """
    Raises:
        BadFile: it is being written, or what was is not complete.
    """
    if (directory / WRITING).is_file():
        refuse_being_written(directory)


def is_copy(directory: Path, made_of: str) -> bool:
    """Whether it is whole, and a copy of the checkpoint whose manifest has this digest."""
    try:
        refuse_part(directory)
    except BadFile:
        return False
    return was_made_of(directory, made_of)


def point_at(place: StorePath, hint: str, name: str) -> None:
    """Let the hint (`latest`, `best`) name a checkpoint."""
    current = checkpoint_dirs.hinted(place, hint)
    if current is None or current.name != name:
        put_object(place / hint, f"{name}\n".encode())


def remove_old(place: StorePath, rule: KeepRule, newest: str) -> list[StorePath]:
    """Remove the checkpoints below `place` that need not be kept, now that `newest` is there; they
    are what it returns."""
    forget(place)
    listed: Sequence[Path] = checkpoint_dirs.listing(place)
    hints = [checkpoint_dirs.hinted(place, hint) for hint in (LATEST, BEST)]
    pinned = {newest, *(path.name for path in hints if path is not None)}
    gone = [path for path in rule.beyond(listed) if path.name not in pinned]
    for path in gone:
        assert isinstance(path, StorePath)
        remove_output(path)
    return [path for path in gone if isinstance(path, StorePath)]
