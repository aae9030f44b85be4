"""The identity of a run for trackers: an id in its `output_dir`, which continues the run there."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

TRACKED = "tracked_run.json"
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTH = 12


@dataclass(frozen=True)
class RunIdentity:
    """`id` identifies the run for trackers; `job` is the directory of the job that began it."""

    id: str
    job: str


def tracked_run(output_dir: Path, job: Path, *, goes_on: bool) -> RunIdentity:
    """Return the run in `output_dir`.

    It is a new one if none exists yet, or if another job begins there from the start (`goes_on`:
    from a checkpoint).

    Raises:
        OSError: it cannot be written.
    """
    path = output_dir / TRACKED
    found = _read(path)
    if found is not None and (goes_on or found.job == str(job)):
        return found
    new = RunIdentity("".join(secrets.choice(_LETTERS) for _ in range(_LENGTH)), str(job))
    partial = path.with_name(f".{TRACKED}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump({"id": new.id, "job": new.job}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return new


def _read(path: Path) -> RunIdentity | None:
    try:
        tree = json.loads(path.read_text("utf-8"))
        run = RunIdentity(tree["id"], tree["job"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(run.id, str) and isinstance(run.job, str)
    return run if known and len(run.id) == _LENGTH and set(run.id) <= set(_LETTERS) else None
