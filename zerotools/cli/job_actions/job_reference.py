"""Finds the job that a command means, by a number, by a name, or the newest; and completes names.

Several jobs may have the same name, for example jobs that resume each other. Then the newest of
these jobs is used, but if several of them are unfinished, the command fails and asks for a number.
If a user may see jobs of other users, a name means the user's own jobs, unless only other users
have jobs with this name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from zerotools.cli.output.messages import command_name
from zerotools.core.errors import BadRequest, DaemonUnreachable, ZerotoolsError
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submission_conflicts import Submission
from zerotools.jobs.jobfile_tables.spec import SLURM
from zerotools.jobs.states import TERMINAL, display_text

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

PREFIX = "slurm:"
"""A job that was submitted to Slurm without a daemon is named by this prefix and its number."""


def jobs_client(
    socket: Path | None, references: Iterable[str | None] = ()
) -> DaemonClient | SlurmJobs:
    """Return a client of the daemon, or a client of Slurm if `references` name jobs of Slurm
    (`slurm:7`).

    Slurm is also used if the daemon has no socket on this machine and this user has submitted jobs
    to Slurm.

    Raises:
        BadRequest: the references name jobs of the daemon and of Slurm.
    """
    named = [each for each in references if each is not None]
    under_slurm = [each for each in named if each.startswith(PREFIX)]
    if under_slurm and len(under_slurm) < len(named):
        other = next(each for each in named if not each.startswith(PREFIX))
        raise BadRequest(
            f"{under_slurm[0]} is a job of Slurm, but {other} is a job of the daemon; name them in "
            "two commands"
        )
    client = DaemonClient(socket)
    if under_slurm or (socket is None and not client.socket.exists() and has_slurm_jobs()):
        from zerotools.jobs.slurm.slurm_jobs import SlurmJobs  # most commands do not need it

        return SlurmJobs()
    return client


def submits_without_daemon(
    client: DaemonClient, jobs: Sequence[Submission], *, no_daemon: bool, dry_run: bool
) -> bool:
    """Return whether this command itself submits the jobs to Slurm.

    The result is False if no job is for Slurm. Otherwise it is True in three cases: no daemon
    answers, `no_daemon` is given, or this is a dry run.

    Raises:
        BadRequest: --no-daemon was given, and no job is for Slurm.
    """
    if not any(each.spec.backend == SLURM for each in jobs):
        if no_daemon:
            raise BadRequest("--no-daemon is for jobs under Slurm; give --slurm, too")
        return False
    if no_daemon or dry_run or not client.socket.exists():
        return True
    try:
        client.health()
    except DaemonUnreachable:
        return True
    return False


def has_slurm_jobs() -> bool:
    """Return whether this user has submitted a job to Slurm without a daemon."""
    from zerotools.jobs.slurm.job_directory import slurm_home

    try:
        return any(slurm_home().iterdir())
    except (OSError, BadRequest):
        return False


_COMPLETION_SECONDS = 1.0
_MAX_COMPLETED = 100


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return completions for the shell: numbers of the newest jobs, or names if a letter was typed.
    Without a daemon there are no completions.
    """
    socket: Path | None = context.params.get("socket")
    try:
        client = DaemonClient(socket, timeout_seconds=_COMPLETION_SECONDS)
        jobs = client.jobs(limit=_MAX_COMPLETED)
    except ZerotoolsError:
        return []
    described = {
        str(job["id"]): f"{job['name'] or ''} {display_text(job['state'])}".strip() for job in jobs
    }
    if incomplete and not incomplete.isdecimal():
        described = {
            str(job["name"]): display_text(job["state"]) for job in reversed(jobs) if job["name"]
        }
    return [
        CompletionItem(word, help=text)
        for word, text in described.items()
        if word.startswith(incomplete)
    ]


job_argument = click.argument(
    "reference", metavar="[JOB]", required=False, shell_complete=_complete
)
"""The argument JOB of a command: the number or name of a job; default: the newest job."""
one_job_argument = click.argument("reference", metavar="JOB", shell_complete=_complete)
shown_jobs_argument = click.argument(
    "references", metavar="[JOB]...", nargs=-1, shell_complete=_complete
)
jobs_argument = click.argument(
    "references", metavar="JOB...", nargs=-1, required=True, shell_complete=_complete
)


def find_jobs(
    client: DaemonClient | SlurmJobs, reference: str, *, over: bool = False
) -> list[dict[str, Any]]:
    """Return the jobs that `reference` means, in the order of their numbers.

    `@7` and `@tiny` mean an array, named by the number of its first job or by its name. If `over`
    is true, all jobs of the array are returned, else only its unfinished jobs. Any other reference
    means one job.

    Raises:
        BadRequest: the job does not exist, or all jobs of the array have ended.
    """
    if not reference.startswith("@") or not isinstance(client, DaemonClient):
        return [find_job(client, reference)]
    number = int(_first_of(client, reference)["array"]["id"])
    known = client.jobs_of_array(number)[::-1]
    found = [job for job in known if over or job["state"] not in TERMINAL]
    if not found:
        raise BadRequest(f"{reference}: all jobs of the array {number} have ended")
    return found


def find_all_jobs(
    client: DaemonClient | SlurmJobs, references: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the jobs that `references` mean, including finished jobs of arrays. Slurm's controller
    is asked once for all numbers.

    Raises the errors of `find_jobs`.
    """
    if not isinstance(client, DaemonClient) and all(each.startswith(PREFIX) for each in references):
        return list(client.jobs_of(references).values())
    return [job for each in references for job in find_jobs(client, each, over=True)]


def job_numbers(client: DaemonClient, reference: str) -> list[int]:
    """Return the numbers of the jobs that `reference` means, including finished jobs of an array.

    Raises:
        BadRequest: the job does not exist.
    """
    return [int(job["id"]) for job in find_jobs(client, reference, over=True)]


def array_member(client: DaemonClient, reference: str) -> int:
    """Return the number of one job of the array `reference` (`@7` or `@tiny`).

    Raises:
        BadRequest: the array does not exist.
    """
    return int(_first_of(client, reference)["id"])


def _first_of(client: DaemonClient, reference: str) -> dict[str, Any]:
    word = reference[1:]
    first = find_job(client, word if is_number(word) else f"{word}-0")
    if first.get("array") is None:
        raise BadRequest(f"{reference}: job {first['id']} is not part of an array; leave the @ out")
    return first


def find_job(client: DaemonClient | SlurmJobs, reference: str | None) -> dict[str, Any]:
    """Return the job that `reference` means; None means the newest job.

    Raises:
        BadRequest: the job does not exist, or several unfinished jobs have the name.
    """
    if not isinstance(client, DaemonClient):
        return client.find(reference)
    if reference is None:
        return _newest(client)
    if reference.startswith(PREFIX):
        raise BadRequest(
            f"{reference}: this command is for jobs of a daemon; for jobs of Slurm without a "
            "daemon use cancel, clean, logs, queue, retry, show or wait"
        )
    if is_number(reference):
        return client.job(int(reference))
    named = _named(client, reference)
    if not named:
        raise BadRequest(
            f"no job has the name {reference!r}; give a number or a name that "
            f"`{command_name()} queue --all` lists"
        )
    going = [job for job in named if job["state"] not in TERMINAL]
    if len(going) > 1:
        numbers = ", ".join(str(job["id"]) for job in reversed(going))
        raise BadRequest(f"jobs {numbers} have the name {reference!r}; give one of these numbers")
    return dict((going or named)[0])


def is_number(reference: str) -> bool:
    """Return whether `reference` is a job number. `007` is not a job number, but it may be
    a name.
    """
    return reference.isascii() and reference.isdecimal() and not reference.startswith("0")


def finished_job_numbers(client: DaemonClient, references: Sequence[str]) -> list[int]:
    """Return the numbers of the jobs that `references` mean, each number once. Unlike in
    `find_job`, a name that several jobs have is an error, even if all of them have ended.

    Raises:
        BadRequest: no job has the name, or several have it.
    """
    found: dict[int, None] = {}
    for reference in references:
        if is_number(reference):
            found[int(reference)] = None
            continue
        named = [job["id"] for job in _named(client, reference)]
        if len(named) > 1:
            numbers = " ".join(map(str, reversed(named)))
            raise BadRequest(f"jobs {numbers} have the name {reference!r}; give their numbers")
        found[named[0] if named else find_job(client, reference)["id"]] = None
    return list(found)


def _newest(client: DaemonClient) -> dict[str, Any]:
    """Return the newest job of the user of this command. If this user has no jobs, return the
    newest job of all users. For example, root may ask the daemon of another user.
    """
    try:
        jobs = client.jobs(limit=1, user="me")
    except BadRequest:  # a daemon of an older version
        jobs = []
    jobs = jobs or client.jobs(limit=1)
    if not jobs:
        raise BadRequest(
            f"the queue has no jobs yet; submit one with: {command_name()} submit JOBFILE"
        )
    return jobs[0]


def _named(client: DaemonClient, name: str) -> list[dict[str, Any]]:
    """Return the jobs with this name, the newest first. If the user of this command has such jobs,
    return only these.
    """
    machine = machine_behind(client.socket)
    own = os.getuid() if machine is None else machine.uid
    found = client.jobs_named(name)
    return [job for job in found if job["uid"] == own] or found
