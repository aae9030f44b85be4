"""Make the batch script of a job, and submit it to Slurm exactly once, even if the response is
lost.

Each job gets a token. The token is written to disk before sbatch is called, and sbatch puts it into
the comment of Slurm's job. If sbatch gives no response, the controller is asked for a job with the
token. If the controller has such a job, the job was queued, else it was not queued. If no
controller answers, this stays unknown until the job is queried later. So no job is submitted twice.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zerotools
from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported
from zerotools.io.files.open_files import sync_file
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.jobfile.parse import given_of, job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm.job_directory import (
    BATCH,
    HOME_VARIABLE,
    JOB,
    LOG,
    STOP,
    SUBMISSIONS,
    JobDirectory,
    new_job_directory,
    write_record,
)
from zerotools.jobs.slurm.slurm_commands import SECONDS, ControllerJob, SlurmCommands

LOOK_AGAIN_SECONDS = 1.0
TRIES = 3
SUBMIT_SECONDS = 3 * SECONDS
"""The time limit in seconds for waiting while another call submits the job. The submission consists
of sbatch and the search for the job.
"""
POLL_SECONDS = 0.2

Claim = Callable[[JobDirectory], Callable[[], None]]
"""A function that reserves the output directory before a job is submitted.

It returns a function that withdraws the reservation. Raises BadRequest.
"""


COMMENT = "zerotools:"
"""The beginning of the comment that zerotools gives to its jobs in Slurm.

The comment identifies a job while its number is not known.
"""
_EXIT_UNSHARED = 78


def _no_claim(directory: JobDirectory) -> Callable[[], None]:
    return lambda: None


def record_of(spec: JobSpec, *, attended: bool = False) -> dict[str, Any]:
    """Return the contents of `job.json` for the job `spec`.

    `attended` is true if a daemon has the job in its queue.
    """
    return {
        "spec": job_to_dict(spec),
        "given": given_of(spec),
        "spec_version": zerotools.__version__,
        "name": spec.name or "job",
        "uid": os.getuid(),
        "created": time.time(),
        "attended": attended,
    }


def submit_job(
    commands: SlurmCommands,
    home: Path,
    spec: JobSpec,
    *,
    key: str | None = None,
    after: Sequence[str] = (),
    options: Sequence[str] = (),
    attended: bool = False,
    claim: Claim = _no_claim,
) -> tuple[JobDirectory, str | None]:
    """Submit a job to Slurm.

    Return the job's directory, and its number in Slurm (None if it is unknown whether Slurm queued
    the job).

    If a job with the same `key` was already submitted, it is not queued again; if another call is
    submitting it, wait for that call. `after` has dependencies in sbatch's form, and `options` has
    further options for sbatch.

    Raises:
        BadRequest: Slurm refuses the job; the error has Slurm's text, and the job's files are
            removed.
        SlurmUnreachable: the controller does not answer; no job was queued.
    """
    commands.version()
    record = record_of(spec, attended=attended)
    while True:
        directory = new_job_directory(home, spec.name or "job", record, key)
        if numbers := directory.submissions():
            if _wait_for_other(commands, directory, numbers[-1]):
                return directory, find_number(commands, directory, numbers[-1])
            continue  # Slurm refused the other call; its directory may be removed
        try:
            return directory, submit_again(
                commands, directory, spec, newest=0, after=after, options=options, claim=claim
            )
        except SubmittedByOther:
            if key is None:
                raise
        except (BadRequest, SlurmUnreachable):
            directory.remove_unsubmitted()  # unless another process submits it with the same key
            raise


class SubmittedByOther(BadRequest):
    """Raised if another call is submitting the same job now."""


def _wait_for_other(commands: SlurmCommands, directory: JobDirectory, submission: int) -> bool:
    """Wait while another call submits the job. Return False if Slurm refused the job, else True."""
    looked = time.monotonic()
    while (record := directory.submission(submission)) is not None:
        age = time.time() - float(record.get("time") or 0.0)
        if record.get("job_id") or record.get("unanswered") or not 0 <= age < SUBMIT_SECONDS:
            return True
        if time.monotonic() - looked > LOOK_AGAIN_SECONDS:  # the other call may have been killed
            looked = time.monotonic()
            with suppress(SlurmUnreachable):
                if find_number(commands, directory, submission, tries=1) is not None:
                    return True
        time.sleep(POLL_SECONDS)
    return False


def submit_again(
    commands: SlurmCommands,
    directory: JobDirectory,
    spec: JobSpec,
    *,
    newest: int | None = None,
    after: Sequence[str] = (),
    options: Sequence[str] = (),
    claim: Claim = _no_claim,
) -> str | None:
    """Submit a job again, so that it continues. Return its new number in Slurm (None if it is
    unknown whether Slurm queued the job).

    `newest` is the number of the finished submission, if the caller has already looked it up.

    Raises BadRequest: Slurm refuses the job, another process is submitting it (SubmittedByOther),
    or another job writes into its output directory.
    """
    withdraw = claim(directory)
    try:
        return _submit(commands, directory, spec, newest, after, options)
    except SubmittedByOther:
        raise  # the claim belongs to the job, not to its submitter
    except (BadRequest, SlurmUnreachable):
        withdraw()
        raise


def _submit(
    commands: SlurmCommands,
    directory: JobDirectory,
    spec: JobSpec,
    newest: int | None,
    after: Sequence[str],
    options: Sequence[str],
) -> str | None:
    token = secrets.token_hex(16)
    try:
        number = directory.new_submission(token, newest)
    except (FileExistsError, FileNotFoundError):
        raise SubmittedByOther(
            f"{directory.path.name}: another process is submitting it now"
        ) from None
    stopped = directory.stop()
    (directory.path / STOP).unlink(missing_ok=True)
    place = directory.submission_path(number)
    text = script_of(spec, directory.path, number, token, commands.environment)
    (place / BATCH).write_text(text, "utf-8")
    sync_file(place / BATCH)
    more = [f"--dependency={','.join(after)}"] if after else []
    try:
        job_id: str | None = commands.submit(text, [*more, *options, f"--chdir={directory.path}"])
    except SlurmUnreachable as lost:
        try:
            job_id = _number_of_token(commands, token)
        except SlurmUnreachable:
            directory.record_unanswered(number)
            return None
        if job_id is None:
            _undo_submission(directory, place, stopped)
            raise SlurmUnreachable(f"{lost}; the job was not queued") from None
    except BadRequest:
        job_id = None
        with suppress(BadRequest, SlurmUnreachable, Unsupported):  # a wrapper may fail after sbatch
            job_id = _number_of_token(commands, token, 1)
        if job_id is None:
            _undo_submission(directory, place, stopped)
            raise
    if job_id is not None:
        directory.record_number(number, job_id)
    return job_id


def _undo_submission(
    directory: JobDirectory, place: Path, stopped: Mapping[str, Any] | None
) -> None:
    """Undo a submission: remove its directory `place`, and restore the record of an earlier stop
    request.
    """
    shutil.rmtree(place, ignore_errors=True)
    if stopped is not None:
        write_record(directory.path / STOP, stopped)


def script_of(
    spec: JobSpec, directory: Path, number: int, token: str, environment: Mapping[str, str]
) -> str:
    """Return the text of the batch script for submission `number` of a job.

    `environment` has the environment variables of this command.
    """
    path = environment.get("PATH") or os.defpath
    return batch_script(spec, directory, number, token, sys.executable, path)


def find_number(
    commands: SlurmCommands, directory: JobDirectory, submission: int, *, tries: int = TRIES
) -> str | None:
    """Return Slurm's number of a submission.

    Return None if the number is unknown, or if the submission was not queued.

    If the number is not recorded, Slurm is asked at most `tries` times. Raises SlurmUnreachable.
    """
    record = directory.submission(submission) or {}
    known = record.get("job_id")
    if isinstance(known, str):
        return known
    token = record.get("token")
    found = _number_of_token(commands, token, tries) if isinstance(token, str) else None
    if found is not None:
        directory.record_number(submission, found)
    return found


def own_of(directory: JobDirectory, found: ControllerJob | None) -> ControllerJob | None:
    """Return `found`, a job of the controller, if it is the job in `directory`; else None.

    A controller that has lost its state may give the same number to another job.
    """
    if found is None:
        return None
    if not found.comment.startswith(COMMENT):  # some clusters do not store comments
        given = ((directory.job() or {}).get("spec") or {}).get("name")
        return found if found.name in ("", name_in_slurm(given)) else None
    record = directory.submission(max(directory.submissions(), default=0)) or {}
    return found if found.comment == f"{COMMENT}{record.get('token')}" else None


def _number_of_token(commands: SlurmCommands, token: str, tries: int = TRIES) -> str | None:
    """Return Slurm's number of the job with the token `token`; None if Slurm does not have the job.

    Slurm is asked up to `tries` times, because a controller may need a moment to queue a job.
    """
    for again in range(tries):
        if again:
            time.sleep(LOOK_AGAIN_SECONDS)
        for each in commands.own_jobs():
            if each.comment == f"{COMMENT}{token}":
                return each.number
    return None


def batch_script(
    spec: JobSpec, directory: Path, submission: int, token: str, python: str, path: str
) -> str:
    """Return the text of the batch script.

    `python` is the interpreter that the script uses on the nodes; `path` is the value of PATH on
    the nodes.
    """
    lines = [f"#SBATCH {option}" for option in options_of(spec, directory, submission, token)]
    job = shlex.quote(str(directory / JOB))
    where = shlex.quote(str(directory))
    return "\n".join(
        (
            "#!/bin/sh",
            *lines,
            f"# Made by zerotools {zerotools.__version__}.",
            f"if ! [ -r {job} ]; then",
            f'    echo "zerotools: node $(hostname) does not see {_in_quotes(directory)}; set '
            f'{HOME_VARIABLE} to a directory that all nodes share, and submit again" >&2',
            f"    exit {_EXIT_UNSHARED}",
            "fi",
            f"if ! [ -x {shlex.quote(python)} ]; then",
            f'    echo "zerotools: node $(hostname) does not have {_in_quotes(python)}; install '
            'zerotools where all nodes have it, and submit again" >&2',
            f"    exit {_EXIT_UNSHARED}",
            "fi",
            f"export PATH={shlex.quote(path)}",
            "unset SLURM_EXPORT_ENV",
            f"exec {shlex.quote(python)} -P -m zerotoolsd.slurm.runner.batch {where} {submission}",
            "",
        )
    )


def options_of(spec: JobSpec, directory: Path, submission: int, token: str) -> Iterator[str]:
    """Yield the options for sbatch, one string each, quoted for a shell."""
    slurm = spec.slurm
    given = {
        "job-name": name_in_slurm(spec.name),
        "comment": f"{COMMENT}{token}",
        "output": str(directory / SUBMISSIONS / str(submission) / LOG),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodes": _nodes(slurm.node_counts),
        "ntasks-per-node": "1",
        "cpus-per-task": _processors(spec),
        "gres": _gres(spec),
        "mem": slurm.memory,
        "time": _minutes(spec),
        "signal": f"B:TERM@{slurm.warning_seconds}",
    }
    for name, value in given.items():
        if value is not None:
            yield f"--{name}={shlex.quote(value)}"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    yield "--open-mode=append"
    # No variables of the submitter: the job file has the job's variables, and Slurm adds some.
    yield "--export=NIL"
    yield "--kill-on-invalid-dep=yes"
    yield from map(shlex.quote, slurm.options)


def name_in_slurm(name: str | None) -> str:
    """Return the name under which Slurm lists a job with this `name`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name or "zerotools")[:100]


def _nodes(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _processors(spec: JobSpec) -> str | None:
    if spec.slurm.cpus_per_rank is not None:
        return str(spec.slurm.cpus_per_rank * spec.world_size)
    return str(spec.world_size) if spec.device == "cpu" else None


def _gres(spec: JobSpec) -> str | None:
    if spec.device == "cpu":
        return None
    kind = "" if spec.slurm.gpu_type is None else f":{spec.slurm.gpu_type}"
    return f"gpu{kind}:{spec.world_size}"


def _minutes(spec: JobSpec) -> str | None:
    seconds = spec.slurm.time_seconds
    if seconds is None and spec.time_limit is not None:
        seconds = seconds_of(spec.time_limit) + spec.slurm.warning_seconds
    return None if seconds is None else str(max(1, math.ceil(seconds / 60)))


def _in_quotes(value: Path | str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", str(value))
