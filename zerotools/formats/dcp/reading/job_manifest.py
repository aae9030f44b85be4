"""Whether the files that a job's record and manifest promise are there."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.runs.checkpoint_dirs import RECORD, JobRecord, rng_name
from zerotools.runs.manifest import verify_manifest


def missing_as_recorded(path: Path, record: JobRecord, known: set[str | None]) -> list[Problem]:
    """Return problems for files that a job's manifest (sizes only) or record lists and that are
    missing."""
    problems = [p for p in verify_manifest(path, digests=False) if p.file not in known]
    said = {problem.file for problem in problems}
    for rank in range(record.world_size if record.rng == "per-rank" else 0):
        name = rng_name(rank)
        if name not in said and not (path / name).is_file():
            message = f"{path / name} is missing, and {RECORD} lists {record.world_size} of them"
            return [*problems, Problem(message, name)]
    return problems
