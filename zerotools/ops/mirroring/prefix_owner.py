"""Record in an object store which run owns the checkpoints below a prefix.

    {"schema": "zerotools.run/1", "run": "5f0c...", "job": "...", "where": "host:/data/out"}

A run writes this object when it begins, if it does not exist. A run that finds the object of
another run stops, because both would write checkpoints with the same names. A run that resumes from
the checkpoints below the prefix becomes the owner: it writes an object with a new `run`, if the old
object has not changed since it was read. The former owner finds the new object and stops. On the
disk, the `run` is recorded next to the checkpoints (`runs.upload_records`). If that disk is lost,
`job` identifies the owner.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.read_json import read_json
from zerotools.io.stores.parse_url import lies_in
from zerotools.io.stores.store_path import StorePath, forget_path, writable_store
from zerotools.runs import find_job_checkpoints
from zerotools.runs.upload_records import record_run, uploaded_run

CLAIM = ".zerotools-run.json"
SCHEMA = "zerotools.run/1"
_LARGEST = 2**16


@dataclass(frozen=True, slots=True)
class FarClaim:
    """The record of the owner of a prefix: the run, its job and its directory."""

    run: str
    job: str
    where: str


def read_claim(place: StorePath) -> FarClaim | None:
    """Return the record of the run that owns the prefix `place`; None if no run owns it.

    Raises:
        BadRequest: the record cannot be read.
    """
    path = place / CLAIM
    try:
        tree: Any = read_json(path, _LARGEST, is_source=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, BadFile) as error:
        raise BadRequest(f"{path} cannot be read ({error!s:.200}); name another URL") from None
    words = ("run", "job", "where")
    is_known = isinstance(tree, dict) and tree.get("schema") == SCHEMA
    if not is_known or not all(isinstance(tree.get(word), str) for word in words):
        raise BadRequest(f"{path} is of another version of zerotools; name another URL")
    return FarClaim(tree["run"], tree["job"], tree["where"])


def check_claim(place: StorePath, output_dir: Path, job: str, resume_from: str | None) -> bool:
    """Return True if the run in `output_dir` may claim the prefix `place`, and False if this job
    has claimed it already.

    Another job may continue the run in the same directory, with its checkpoints. A copy of this
    directory at another path counts as another run, because the first run may still write.

    Raises:
        BadRequest: the prefix has checkpoints of another run, and this run does not resume from
            them; or this run resumes from them, but `output_dir` has other checkpoints.
    """
    forget_path(place)
    found = read_claim(place)
    own = find_job_checkpoints.list_checkpoints(output_dir)
    is_known = found is not None and found.run == uploaded_run(output_dir)
    if found is not None and found.job == job:
        return not is_known
    if lies_in(resume_from, str(place)):
        if own and not is_known:
            raise BadRequest(
                f"output_dir = {output_dir}: holds other checkpoints than {place}; name another "
                "output_dir, or another URL to upload to"
            )
        return True
    is_here = is_known and found is not None and _is_in(output_dir, found.where)
    if is_here and (own or not _steps(place)):  # another job of the run
        return True
    if found is None and not _steps(place):
        return True
    whose = "" if found is None else f" of {found.where}"
    raise BadRequest(
        f"checkpoint.upload_to = {place}: holds checkpoints of another run{whose}; name another "
        f'URL, or resume from them with resume_from = "{place}"'
    )


def claim_prefix(place: StorePath, output_dir: Path, job: str, resume_from: str | None) -> bool:
    """Make the run in `output_dir` the owner of the prefix `place`. Return False if this job owned
    it before, else True.

    Raises:
        BadRequest: as `check_claim`; or another run claims it at the same time.
    """
    if not check_claim(place, output_dir, job, resume_from):
        return False
    store, key = writable_store(place)
    before = store.head(f"{key}/{CLAIM}")
    run = uploaded_run(output_dir) if before is None else None
    mine = FarClaim(run or uuid.uuid4().hex, job, f"{socket.gethostname()}:{output_dir}")
    tree = {"schema": SCHEMA, "run": mine.run, "job": mine.job, "where": mine.where}
    try:
        store.put(f"{key}/{CLAIM}", json.dumps(tree).encode(), new=before is None, replaces=before)
    except FileExistsError:  # also if the response to the first try was lost
        forget_path(place)
        if read_claim(place) != mine:
            raise BadRequest(f"another run claims {place} now; name another URL") from None
    forget_path(place)
    record_run(output_dir, mine.run, job)
    return True


def refuse_lost(place: StorePath, output_dir: Path) -> None:
    """Check that the run in `output_dir` still owns the prefix `place`.

    Raises:
        BadRequest: another run owns the prefix now, or the record was removed.
    """
    forget_path(place / CLAIM)
    found = read_claim(place)
    if found is None or found.run != uploaded_run(output_dir):
        who = "not claimed any more" if found is None else f"now claimed by {found.where}"
        raise BadRequest(f"{place} is {who}: this run stops uploading to it")


def _is_in(output_dir: Path, where: str) -> bool:
    return os.path.realpath(where.partition(":")[2]) == os.path.realpath(output_dir)


def _steps(place: StorePath) -> bool:
    return place.is_dir() and bool(find_job_checkpoints.list_checkpoints(place))
