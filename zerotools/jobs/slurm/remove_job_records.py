"""Remove the records of jobs under Slurm that have ended, for `zerotools clean`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.slurm.job_directory import JOB, OUTPUT, JobDirectory

Answer = dict[str, Any]


class _NotRemovable(Exception):
    """The reason why a job is kept, as a sentence."""


def clean_jobs(
    jobs: Sequence[tuple[JobDirectory, Mapping[str, Any]]],
    request: Mapping[str, Any],
    unfinished: Iterable[JobDirectory],
) -> Answer:
    """Remove the jobs in `jobs` that `request` selects, and return the answer of the daemon's
    `POST /v1/clean`.

    `jobs` are the directories and views of the jobs that were named, or of all jobs. A job is kept
    if the job file of a job in `unfinished` names its directory.

    Raises BadRequest: the logs cannot be removed without the records.
    """
    if request.get("logs_only"):
        raise BadRequest("--logs-only is for jobs of a daemon; leave it out for jobs of Slurm")
    over = [each for each in jobs if each[1]["state"] in states.TERMINAL]
    meant = _selected(over, request)
    specs = [_text_of(each) for each in unfinished]
    gone: list[Answer] = []
    kept: list[Answer] = []
    for directory, view in jobs:
        try:
            if view["id"] not in meant:
                if not request.get("jobs"):
                    continue
                raise _NotRemovable(
                    "it is excluded by the options for state, age or number of jobs to keep"
                    if view["state"] in states.TERMINAL
                    else f"it {states.predicate(view['state'])}; only a finished job can be removed"
                )
            gone.append(_removed(directory, view, request, specs))
        except _NotRemovable as why:
            name = view["name"] or ""
            kept.append({"id": view["id"], "name": name, "why": str(why), "gone": False})
    return {"jobs": gone, "kept": kept, "dry_run": bool(request.get("dry_run"))}


def _selected(
    over: Sequence[tuple[JobDirectory, Mapping[str, Any]]], request: Mapping[str, Any]
) -> set[str]:
    newest = sorted(over, key=lambda job: float(job[1]["ended"] or 0.0), reverse=True)
    age, wanted = request.get("older_than_seconds"), request.get("states")
    return {
        view["id"]
        for _, view in newest[request.get("keep") or 0 :]
        if (age is None or time.time() - float(view["ended"] or 0.0) >= age)
        and (not wanted or view["state"] in wanted)
    }


def _removed(
    directory: JobDirectory, view: Mapping[str, Any], request: Mapping[str, Any], specs: list[str]
) -> Answer:
    output = directory.path / OUTPUT
    has_output = output.is_dir() and any(output.iterdir())
    if has_output and not request.get("outputs"):
        raise _NotRemovable(
            f"its output is in its records ({output}); to remove that too, type: zerotools clean "
            f"--outputs {view['id']}"
        )
    if any(json.dumps(str(directory.path))[1:-1] in text for text in specs):
        raise _NotRemovable(f"an unfinished job names {directory.path}")
    answer = {
        "id": view["id"],
        "name": view["name"] or "",
        "state": view["state"],
        "ended": view["ended"],
        "size_bytes": _size(directory.path),
        "outputs": [str(output)] if has_output else [],
    }
    if not request.get("dry_run"):
        _remove(directory)
    return answer


def _remove(directory: JobDirectory) -> None:
    """Remove the records of a job. A job that is submitted again meanwhile is kept."""
    newest = directory.submissions()
    gone = JobDirectory(directory.path.with_name(f".{directory.path.name}.{secrets.token_hex(4)}"))
    try:
        directory.path.rename(gone.path)  # from now on no process can submit it again
        if gone.submissions() != newest:
            gone.path.rename(directory.path)
            raise _NotRemovable("it was submitted again")
        shutil.rmtree(gone.path)
    except OSError as error:
        raise _NotRemovable(f"{error.filename}: {error.strerror}") from None


def _text_of(directory: JobDirectory) -> str:
    try:
        return (directory.path / JOB).read_text(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  # of many files
        for place, _, names in os.walk(path)
        for name in names
    )
