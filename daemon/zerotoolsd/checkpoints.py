"""Finding the checkpoints of a job. Sizes are compared here; the trainer compares digests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.formats.dcp import jobcheckpoint as layout
from zerotools.io.manifest import MANIFEST, read_manifest


@dataclass(frozen=True)
class Found:
    """A checkpoint directory with a manifest."""

    step: int
    path: Path


def committed(output_dir: Path) -> Iterator[Found]:
    """The checkpoints in `output_dir` that were finished, the newest first."""
    try:
        listed = layout.listing(output_dir)
    except OSError:
        return
    for path in listed:
        step = layout.step_of(path.name)
        if step is not None and (path / MANIFEST).is_file():
            yield Found(step, path)


def newest(output_dir: Path) -> Found | None:
    """The newest finished checkpoint."""
    return next(committed(output_dir), None)


def newest_whole(output_dir: Path) -> Found | None:
    """The newest finished checkpoint whose files are all there, of the right size."""
    return next((found for found in committed(output_dir) if _is_whole(found.path)), None)


def _is_whole(directory: Path) -> bool:
    try:
        entries = read_manifest(directory)
        return all(
            (directory / name).stat().st_size == entry.size for name, entry in entries.items()
        )
    except (BadFile, OSError):
        return False
