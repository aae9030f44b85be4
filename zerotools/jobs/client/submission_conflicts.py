"""Find conflicts between the directories of jobs that are queued together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerotools.core.errors import BadRequest, DaemonRefused, Unsupported, ZerotoolsError
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.find_job_checkpoints import BEST, LATEST


@dataclass(frozen=True)
class Submission:
    """A job to queue, and the path of its job file."""

    source: str
    spec: JobSpec
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the request that determine when the job starts, such as `after` and `begin`."""


def with_source(source: str, error: ZerotoolsError) -> ZerotoolsError:
    """Return `error` with the path of the job file at the beginning of its message."""
    text = str(error)
    if text.startswith(f"{source}: "):
        return error
    if type(error) in (BadRequest, Unsupported, DaemonRefused):
        return type(error)(f"{source}: {text}", status=error.status, code=error.code)
    return error


class Places(NamedTuple):
    """The directories that a job reads or writes, and the path of its job file."""

    source: str
    output_dir: str | None
    resume_from: str | None


def submission_conflicts(jobs: Sequence[Submission | Places]) -> Iterator[BadRequest]:
    """Yield an error for each job that cannot be queued together with another job in `jobs`.

    If a file system hangs, this function waits for it.
    """
    named = [
        each
        if isinstance(each, Places)
        else Places(each.source, each.spec.output_dir, each.spec.resume_from)
        for each in jobs
    ]
    writers: dict[str, Places] = {}
    for each in named:
        if each.output_dir is None:
            continue
        place = os.path.realpath(each.output_dir)
        if place in writers:
            yield BadRequest(
                f"{each.source}: output_dir = {each.output_dir}: {writers[place].source} "
                "writes there too; name another directory"
            )
        else:
            writers[place] = each
    for each in named:
        yield from _moving_start(each, writers)


def _moving_start(job: Places, writers: dict[str, Places]) -> Iterator[BadRequest]:
    """Yield an error if the job starts from a checkpoint that another job in `writers` will write
    or replace. `writers` maps an output directory to the job that writes there."""
    given = job.resume_from
    if given is None:
        return
    for place, other in writers.items():
        if other is job or not _is_moved_by(given, place):
            continue
        yield BadRequest(
            f"{job.source}: resume_from = {given}: {other.source} writes checkpoints there, so "
            "this path may be another checkpoint when the job starts; submit the job when "
            f"{other.source} has ended, or name one checkpoint that exists now (step-...)"
        )


def _is_moved_by(given: str, place: str) -> bool:
    """Return whether the checkpoint at the path `given` can change when another job writes to the
    directory `place`.
    """
    path = Path(given)
    hint = path.name in (LATEST, BEST)
    # A hint is a file or a link of the run; its current target does not matter.
    within = Path(os.path.realpath(path.parent if hint else path))
    if hint or within == Path(place):
        return within == Path(place)
    return within.is_relative_to(place) and not within.exists()
