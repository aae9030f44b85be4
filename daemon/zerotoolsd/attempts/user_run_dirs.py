"""Directories of jobs of other users: users own theirs, and cannot rename those of the daemon.

    jobs/                   root, 0711: users cannot list the jobs
      7/                    root, 0755: only the daemon creates names here
        attempt-1/          the user's, 0700
        output/, own/       the user's, 0700
        begun-1.json        root, 0600: the daemon's data on the attempt

A user can write anything into attempt-1, but can neither replace the directory nor create an
attempt. So the owner of such a directory is the job's user, and the record next to it has the
attempt and its GPUs, whatever the directory contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable import read_json, write_json
from zerotoolsd.users.account import Account
from zerotoolsd.users.open_as_user import let_through, make_owned, owner_of

OWN = "own"
"""Directory in that of a user's job: files that its processes keep between attempts."""
JOBS_MODE, JOB_MODE = 0o711, 0o755
BEGUN = "begun"


def make_of_job(own: Path, names: Iterable[str], account: Account) -> None:
    """Make these directories of the user in the job directory `own`. Raises OSError."""
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        make_owned(own / name, account)
    let_through(own, JOB_MODE)
    let_through(own.parent, JOBS_MODE)


def make_cache(directory: Path, account: Account, *, is_own: bool) -> None:
    """Make a directory of the user in one that all users share. `is_own`: the shared one is the
    daemon's, which a job of root may have made for itself; the mode of another is its owner's
    affair, unless it is made here. Raises OSError."""
    shared = directory.parent
    is_new = not shared.exists()
    shared.mkdir(parents=True, exist_ok=True, mode=0o700)
    if is_new or is_own:
        let_through(shared, JOBS_MODE)
    make_owned(directory, account)


def note(run_dir: Path, attempt: AttemptRow, spec: Mapping[str, Any]) -> None:
    """Record next to the run directory which attempt begins in it. Raises OSError."""
    known = {
        "job_id": attempt.job_id,
        "token": attempt.token,
        "gpu_uuids": list(attempt.gpu_uuids),
        "spec": dict(spec),
    }
    write_json(_note_of(run_dir), known)


def noted(run_dir: Path) -> dict[str, Any] | None:
    """Return the record of `note`; None for a directory of the daemon's user, which needs none.

    Raises OSError and ValueError if the record is missing or cannot be read.
    """
    if owner_of(run_dir) is None:
        return None
    found = read_json(_note_of(run_dir))
    if found is None:
        raise ValueError(f"{_note_of(run_dir).name} is missing next to the directory of a user")
    return found


def note_time(run_dir: Path) -> float:
    """Return when the attempt in a user's directory was recorded, in seconds since the epoch.

    Raises OSError.
    """
    return _note_of(run_dir).stat().st_mtime


def _note_of(run_dir: Path) -> Path:
    return run_dir.with_name(f"{BEGUN}-{run_dir.name.removeprefix('attempt-')}.json")
