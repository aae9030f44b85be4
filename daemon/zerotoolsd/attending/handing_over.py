"""A job of the daemon is handed to Slurm once, whatever becomes of the process that does so.

Its directory among the user's jobs under Slurm is named by the job itself, so that each attempt
finds what the one before has left: a job that waits or runs is only watched again. One that has
ended is told of once; an attempt after that submits it again, to go on where it was.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from functools import partial
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.slurm.job_directory import JobDirectory, read_record, write_record
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submitting import submit_again, submit_job
from zerotools.jobs.states import TERMINAL
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.supervisor.plan import EXIT

WORD = "slurm.json"
TOLD = "told.json"
"""In a submission's directory: who told the daemon how it ended."""


def key_of(job_dir: Path, name: str | None) -> str:
    """The word by which a job of this daemon is found again: that of no other job, also where a
    daemon has lost its state, and gives numbers a second time. Raises BadRequest."""
    try:
        own = _word_of(job_dir)
    except OSError as error:
        raise BadRequest(f"{job_dir} cannot be written: {error.strerror}") from None
    place = f"{socket.gethostname()}:{job_dir}:{own}"
    return f"{(name or 'job')[:30]}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def _word_of(job_dir: Path) -> str:
    """A word that is in the directory of a job, from its first attempt on."""
    path = job_dir / WORD
    if (known := read_record(path)) is None:
        known = {"word": secrets.token_hex(16)}
        write_record(path, known)
    return str(known.get("word"))


def handed_over(
    commands: SlurmCommands, jobs: SlurmJobs, home: Path, spec: JobSpec, key: str
) -> JobDirectory:
    """The directory of a job that Slurm has, or had and that is still to be told of.

    Raises BadRequest, SlurmUnreachable and Unsupported: it was not handed over.
    """
    claim = partial(jobs.claim_output, spec)
    directory, _ = submit_job(commands, home, spec, key=key, attended=True, claim=claim)
    view = jobs.job(directory.path.name)
    if view["state"] in TERMINAL and is_told(directory):
        submit_again(commands, directory, spec, claim=claim)
    return directory


def is_told(directory: JobDirectory) -> bool:
    """Whether the end of the newest submission was told: who was to tell it has ended so, by its
    supervisor's word."""
    told = read_record(_told_path(directory))
    if told is None:
        return False
    record = read_record(Path(str(told.get("run_dir"))) / EXIT) or {}
    ranks = record.get("ranks") or [{}]
    return bool(ranks[0].get("exit_code") == told.get("status"))


def note_told(directory: JobDirectory, run_dir: Path, status: int) -> None:
    """It is told by whoever attends it in `run_dir`, and ends with `status` now."""
    write_record(_told_path(directory), {"run_dir": str(run_dir), "status": status})


def _told_path(directory: JobDirectory) -> Path:
    return directory.submission_path(max(directory.submissions())) / TOLD
