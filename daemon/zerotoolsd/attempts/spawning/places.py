"""Directories of jobs of other users: each is at home in theirs, and no name of the daemon's moves.

    jobs/                   root, 0711: nobody lists the jobs
      7/                    root, 0755: only the daemon gives names here
        attempt-1/          the user's, 0700
        output/, own/       the user's, 0700
        begun-1.json        root, 0600: what the daemon knows of the attempt

A user can write what they like into attempt-1, but neither put another directory in its place nor
make an attempt that never was. So the owner of such a directory is the job's user, and the record
beside it says which attempt began there, on which GPUs, whatever the directory says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.accounts.account import Account
from zerotoolsd.accounts.rights import let_through, make_owned, owner_of
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable import read_json, write_json

OWN = "own"
"""In the directory of a user's job: what its processes keep from one attempt to the next."""
JOBS_MODE, JOB_MODE = 0o711, 0o755
BEGUN = "begun"


def make_of_job(own: Path, names: Iterable[str], account: Account) -> None:
    """Make these directories of the user in `own`, the directory of their job. Raises OSError."""
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
    """Say beside the run directory which attempt begins in it. Raises OSError."""
    known = {
        "job_id": attempt.job_id,
        "token": attempt.token,
        "gpu_uuids": list(attempt.gpu_uuids),
        "spec": dict(spec),
    }
    write_json(_note_of(run_dir), known)


def noted(run_dir: Path) -> dict[str, Any] | None:
    """What `note` wrote; None: the directory is the daemon's own, which speaks for itself.

    Raises OSError, ValueError: nothing can be said of it.
    """
    if owner_of(run_dir) is None:
        return None
    found = read_json(_note_of(run_dir))
    if found is None:
        raise ValueError(f"{_note_of(run_dir).name} is missing beside the directory of a user")
    return found


def note_time(run_dir: Path) -> float:
    """When the attempt in a user's directory was noted, in seconds since the epoch. Raises
    OSError."""
    return _note_of(run_dir).stat().st_mtime


def _note_of(run_dir: Path) -> Path:
    return run_dir.with_name(f"{BEGUN}-{run_dir.name.removeprefix('attempt-')}.json")
