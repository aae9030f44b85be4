"""Finding the checkpoints in a directory, by their names and manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.runs import checkpoint_dirs
from zerotools.runs.manifest import MANIFEST


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint directory with a manifest."""

    step: int
    path: Path


def committed(output_dir: Path) -> Iterator[FoundCheckpoint]:
    """Yield the finished checkpoints in `output_dir`, the newest first."""
    try:
        listed = checkpoint_dirs.listing(output_dir)
    except OSError:
        return
    for path in listed:
        step = checkpoint_dirs.step_of(path.name)
        if step is not None and (path / MANIFEST).is_file():
            yield FoundCheckpoint(step, path)


def newest(output_dir: Path) -> FoundCheckpoint | None:
    """Return the newest finished checkpoint."""
    return next(committed(output_dir), None)
