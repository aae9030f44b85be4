"""Finds checkpoints and conflicting outputs in directories of users, in a child process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.submission_conflicts import Places, submission_conflicts
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotools.runs.job_checkpoint_file_names import MANIFEST


def newest_undamaged(paths: list[str]) -> dict[str, Any]:
    """Return `{"path", "why"}` of the first undamaged checkpoint in the list `paths`.

    If all checkpoints are damaged, `path` is None, and `why` describes the damage of the first one;
    otherwise `why` is None. Blocks while a file system does not respond. Raises OSError.
    """
    from zerotools.ops.inspection.completeness import damage_sentences  # readers of every format

    why: str | None = None
    for path in paths:
        try:
            found = next(damage_sentences(Path(path)), None)
        except (FileNotFoundError, NotADirectoryError):
            found = f"{path} does not exist any more"
        except ZerotoolsError as error:
            found = str(error)
        if found is None:
            return {"path": path, "why": None}
        why = why or found
    return {"path": None, "why": why}


def newest_step(output_dir: str) -> int | None:
    """Return the step of the newest finished checkpoint in `output_dir`, or None if there is no
    checkpoint.
    """
    found = newest_checkpoint(Path(output_dir))
    return None if found is None else found.step


def real_paths(paths: list[str]) -> list[str]:
    """Return each path with symbolic links resolved, or unchanged if that is not possible."""
    return [_real(path) for path in paths]


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a path that an odd record holds
        return os.path.normpath(path)


def directory_conflict(named: list[tuple[str, str | None, str | None]]) -> str | None:
    """Return the reason why these jobs cannot be queued together; None if they can.

    `named` has (source, `output_dir`, `resume_from`) of each job. Blocks while a file system does
    not respond.
    """
    problem = next(submission_conflicts([Places(*each) for each in named]), None)
    return None if problem is None else str(problem)


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint directory with a manifest."""

    step: int
    path: Path


def finished_checkpoints(output_dir: Path) -> Iterator[FoundCheckpoint]:
    """Yield the finished checkpoints in `output_dir`, the newest first."""
    try:
        listed = find_job_checkpoints.list_checkpoints(output_dir)
    except OSError:
        return
    for path in listed:
        step = find_job_checkpoints.step_of(path.name)
        if step is not None and (path / MANIFEST).is_file():
            yield FoundCheckpoint(step, path)


def newest_checkpoint(output_dir: Path) -> FoundCheckpoint | None:
    """Return the newest finished checkpoint in `output_dir`; None if it has no checkpoint."""
    return next(finished_checkpoints(output_dir), None)


def named_places(spec: JobSpec) -> str:
    """Return the directories that the job file names, as text for a message."""
    script = spec.script.directory if spec.engine == "script" else None
    named = {
        "script.directory": script,
        "model.path": spec.model.path,
        "output_dir": spec.output_dir,
        "resume_from": spec.resume_from,
        "python": spec.python,
    }
    return ", ".join(f"{key} = {path}" for key, path in named.items() if path) or "no directory"
