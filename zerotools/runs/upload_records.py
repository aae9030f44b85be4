"""A job's records of its uploads to an object store, next to its checkpoints.

    <output_dir>/.uploads/run.json      the run's name in the object store, and the job that uploads
                         /sending       text: the directory that is being uploaded and not deleted
                         /fetched-from  text: the URL of the checkpoint in `.resumed-from`

Standard library only, because the training process imports this module too.
"""

from __future__ import annotations

import json
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import read_regular
from zerotools.runs.find_job_checkpoints import step_of
from zerotools.runs.manifest import write_durably

UPLOADS = ".uploads"
FETCHED = ".resumed-from"
"""The name of the directory, in the output directory, for the local copy of a checkpoint in an
object store that `resume_from` names.
"""
_RUN = "run.json"
_SENDING = "sending"
_FETCHED_FROM = "fetched-from"
_LARGEST = 4096


def uploaded_run(output_dir: Path) -> str | None:
    """Return the run (its name in the object store) to which the checkpoints in `output_dir`
    belong; None if nothing was uploaded."""
    return _noted(output_dir, "run")


def uploading_job(output_dir: Path) -> str | None:
    """Return the job that last called `record_run` for `output_dir`; None if no job did."""
    return _noted(output_dir, "job")


def _noted(output_dir: Path, word: str) -> str | None:
    try:
        tree = read_json(output_dir / UPLOADS / _RUN, _LARGEST, is_source=False)
    except (OSError, ValueError, BadFile):
        return None
    found = tree.get(word) if isinstance(tree, dict) else None
    return found if isinstance(found, str) else None


def record_run(output_dir: Path, run: str, job: str) -> None:
    """Record that the checkpoints in `output_dir` belong to the run `run` in the object store, and
    that the job `job` uploads them. Raises OSError."""
    (output_dir / UPLOADS).mkdir(parents=True, exist_ok=True)
    write_durably(output_dir / UPLOADS / _RUN, json.dumps({"run": run, "job": job}) + "\n")


def checkpoint_in_upload(output_dir: Path) -> Path | None:
    """Return the checkpoint that is being uploaded now, or that was being uploaded when the process
    was killed. Return None if no upload was in progress.
    """
    try:
        data = read_regular(output_dir / UPLOADS / _SENDING, _LARGEST, is_source=False)
        name = data.decode().strip()
    except (OSError, UnicodeDecodeError, BadFile):
        return None
    return None if step_of(name) is None else output_dir / name


def fetched_url(output_dir: Path) -> str | None:
    """Return the URL from which the checkpoint in the directory `FETCHED` was downloaded; None if
    it is not recorded."""
    try:
        data = read_regular(output_dir / UPLOADS / _FETCHED_FROM, _LARGEST, is_source=False)
        return data.decode().strip()
    except (OSError, UnicodeDecodeError, BadFile):
        return None


def record_fetched_url(output_dir: Path, url: str | None) -> None:
    """Record that the directory `FETCHED` has the checkpoint at `url`. If `url` is None, remove
    the record. Raises OSError.
    """
    _note(output_dir / UPLOADS / _FETCHED_FROM, url)


def record_upload(output_dir: Path, path: Path | None) -> None:
    """Record that the checkpoint `path` is being uploaded. If `path` is None, remove the record.
    Raises OSError.
    """
    _note(output_dir / UPLOADS / _SENDING, None if path is None else path.name)


def _note(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text + "\n")
