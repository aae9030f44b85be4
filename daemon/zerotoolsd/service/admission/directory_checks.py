"""Finds checkpoints and conflicting outputs in directories of users, in a child process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.submission_conflicts import Places, conflicts
from zerotools.runs import checkpoint_dirs
from zerotools.runs.file_names import MANIFEST


def newest_undamaged(paths: list[str]) -> dict[str, Any]:
    """Find the first undamaged checkpoint in `paths`. May wait for a file system that hangs.

    Returns `path`, or, if all are damaged, None with `why` the first one is. Raises OSError.
    """
    from zerotools.ops.inspection.completeness import damages  # readers of every format

    why: str | None = None
    for path in paths:
        try:
            found = next(damages(Path(path)), None)
        except (FileNotFoundError, NotADirectoryError):
            found = f"{path} does not exist any more"
        except ZerotoolsError as error:
            found = str(error)
        if found is None:
            return {"path": path, "why": None}
        why = why or found
    return {"path": None, "why": why}


def newest_step(output_dir: str) -> int | None:
    """Return the step of the newest checkpoint in a job's directory."""
    found = newest(Path(output_dir))
    return None if found is None else found.step


def real_paths(paths: list[str]) -> list[str]:
    """Return each path with its links resolved; unresolvable paths stay unchanged."""
    return [_real(path) for path in paths]


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a path that an odd record holds
        return os.path.normpath(path)


def directory_conflict(named: list[tuple[str, str | None, str | None]]) -> str | None:
    """Return why these jobs cannot be queued together; None if they can.

    Each job is (source, `output_dir`, `resume_from`). May wait for a file system that hangs.
    """
    problem = next(conflicts([Places(*each) for each in named]), None)
    return None if problem is None else str(problem)


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
