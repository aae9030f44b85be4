"""List the checkpoints of a run in an object store, and remove those that should not be kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.formats.detect import refuse_being_written
from zerotools.io.output.output_marker import MARKER, was_made_of
from zerotools.io.output.store_write_record import WRITING, is_written
from zerotools.io.output.write_to_store import ForeignObjects, remove_output
from zerotools.io.stores.store_path import StorePath, forget_path, put_object
from zerotools.runs import find_job_checkpoints
from zerotools.runs.deletable_checkpoints import KeepRule
from zerotools.runs.find_job_checkpoints import BEST, LATEST, ResumeChoice


def newest_copy(place: Path, above: int = -1) -> ResumeChoice:
    """Return the newest checkpoint below `place` with a step greater than `above`. A checkpoint
    counts if it is complete and not thinned, and its objects have the sizes in its manifest."""
    return find_job_checkpoints.newest_valid(
        place, above=above, digests=False, structure=refuse_part
    )


def refuse_part(directory: Path) -> None:
    """Refuse an incomplete checkpoint in the store.

    Raises:
        BadFile: the checkpoint is being written, or its transfer was interrupted.
    """
    if (directory / WRITING).is_file():
        refuse_being_written(directory)


def is_copy(directory: Path, made_of: str) -> bool:
    """Return whether a checkpoint in the store is a complete copy. `made_of` is the digest of the
    manifest on the disk."""
    try:
        refuse_part(directory)
    except BadFile:
        return False
    return was_made_of(directory, made_of)


def point_at(place: StorePath, hint: str, name: str) -> None:
    """Write the object `hint` (`latest` or `best`) with the name of a checkpoint."""
    current = find_job_checkpoints.hinted_checkpoint(place, hint)
    if current is None or current.name != name:
        put_object(place / hint, f"{name}\n".encode())


def remove_old(place: StorePath, rule: KeepRule, kept: Collection[str]) -> list[StorePath]:
    """Remove the copies below `place` that the rule does not keep, and the objects of interrupted
    transfers. Return the removed copies. Nothing is removed if the rule has no limit.

    Copies named in `kept`, in `latest` or in `best` stay.
    """
    if rule.last is None:
        return []
    forget_path(place)
    listed = [
        path for path in find_job_checkpoints.list_checkpoints(place) if isinstance(path, StorePath)
    ]
    whole, parts = _newest_whole(listed, rule.last)
    is_full = len(whole) == rule.last
    older = [path for path in listed if is_full and path.name < whole[-1].name]
    hints = [find_job_checkpoints.hinted_checkpoint(place, hint) for hint in (LATEST, BEST)]
    pinned = {*kept, *(path.name for path in hints if path is not None)}
    gone = []
    for path in [*parts, *replace(rule, last=0).beyond(older)]:
        if path.name not in pinned and isinstance(path, StorePath):
            with suppress(ForeignObjects):  # it is not ours
                remove_output(path, leave_foreign=True)
                gone.append(path)
    return gone


def _newest_whole(
    listed: Sequence[StorePath], count: int
) -> tuple[list[StorePath], list[StorePath]]:
    """Return the `count` newest complete checkpoints, and the incomplete checkpoints between the
    newest and the oldest of them."""
    whole, parts = list[StorePath](), list[StorePath]()
    for path in listed:
        if len(whole) == count:
            break
        names = {each.name for each in path.iterdir()}
        if MARKER in names and (WRITING not in names or is_written(path)):
            whole.append(path)
        elif WRITING in names and whole:
            parts.append(path)
    return whole, parts
