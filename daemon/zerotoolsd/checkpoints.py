"""Finding the checkpoints of a job. Sizes are compared here; the trainer compares digests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.manifest import MANIFEST, read_manifest

_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, order=True)
class Found:
    """A checkpoint directory with a manifest."""

    step: int
    path: Path


def committed(output_dir: Path) -> Iterator[Found]:
    """The checkpoints in `output_dir` that were finished, the newest first."""
    try:
        matches = [(_STEP.fullmatch(entry.name), entry) for entry in output_dir.iterdir()]
    except OSError:
        return
    found = [Found(int(match[1]), entry) for match, entry in matches if match is not None]
    yield from (each for each in sorted(found, reverse=True) if (each.path / MANIFEST).is_file())


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
