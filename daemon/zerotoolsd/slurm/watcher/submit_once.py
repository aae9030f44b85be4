"""Submits a job of the daemon to Slurm once, even if the submitting process is restarted.

Its directory among the user's jobs under Slurm is named after the job, so each attempt finds the
previous one's: a waiting or running job is only watched again. The end of a job is reported once;
an attempt after that submits it again, to continue.
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
"""File in a submission's directory: the process that reported its end to the daemon."""


def key_of(job_dir: Path, name: str | None) -> str:
    """Return the unique name that finds a job of this daemon again. Raises BadRequest.

    It stays unique even if a daemon has lost its state and reuses numbers.
    """
    try:
        own = _word_of(job_dir)
    except OSError as error:
        raise BadRequest(f"{job_dir} cannot be written: {error.strerror}") from None
    place = f"{socket.gethostname()}:{job_dir}:{own}"
    return f"{(name or 'job')[:30]}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def _word_of(job_dir: Path) -> str:
    """Return the name in the directory of a job, which exists from its first attempt on."""
    path = job_dir / WORD
    if (known := read_record(path)) is None:
        known = {"word": secrets.token_hex(16)}
        write_record(path, known)
    return str(known.get("word"))


def handed_over(
    commands: SlurmCommands, jobs: SlurmJobs, home: Path, spec: JobSpec, key: str
) -> JobDirectory:
    """Return the directory of a job that Slurm has, or has ended without a report.

    Raises BadRequest, SlurmUnreachable and Unsupported if it was not submitted.
    """
    claim = partial(jobs.claim_output, spec)
    directory, _ = submit_job(commands, home, spec, key=key, attended=True, claim=claim)
    view = jobs.job(directory.path.name)
    if view["state"] in TERMINAL and is_told(directory):
        submit_again(commands, directory, spec, claim=claim)
    return directory


def is_told(directory: JobDirectory) -> bool:
    """Return whether the end of the newest submission was reported.

    The reporting process must have ended with the recorded status, according to its supervisor.
    """
    told = read_record(_told_path(directory))
    if told is None:
        return False
    record = read_record(Path(str(told.get("run_dir"))) / EXIT) or {}
    ranks = record.get("ranks") or [{}]
    return bool(ranks[0].get("exit_code") == told.get("status"))


def note_told(directory: JobDirectory, run_dir: Path, status: int) -> None:
    """Record that the process in `run_dir` reports the end, and ends with `status` now."""
    write_record(_told_path(directory), {"run_dir": str(run_dir), "status": status})


def _told_path(directory: JobDirectory) -> Path:
    return directory.submission_path(max(directory.submissions())) / TOLD
