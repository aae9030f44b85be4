"""The files of a save directory around its tags, carried along so that the output is a drop-in."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import FilePlan
from zerotools.formats.deepspeed.schema.file_names import is_tag_directory
from zerotools.formats.deepspeed.schema.signs import LATEST
from zerotools.formats.deepspeed.schema.tag import run_directory
from zerotools.io.output.checkpoint_sidecars import run_sidecars_in
from zerotools.io.output.plain_files import literal


def run_sidecars(
    source: Checkpoint, *, same_ranks: bool
) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """Return the files next to the tag's directory, with `latest` naming it, and notes on them."""

    def is_own(path: Path) -> bool:
        tags = path == source.root or (path.is_dir() and is_tag_directory(path))
        return tags or path.name in LATEST

    directory, tag = run_directory(source), source.root.name
    plans: dict[str, FilePlan] = {}
    notes: tuple[str, ...] = ()
    if directory is not None:
        plans, notes = run_sidecars_in(directory, is_own, same_ranks=same_ranks)
    plans[LATEST[0]] = literal(tag.encode())
    return plans, notes
