"""Finds the job that a command means: by a number, by a name, or the newest; and completes names.

Several jobs may have one name, for example jobs that resume each other. The newest is used, unless
several of them are unfinished: then the command asks for a number. For a user who sees other users'
jobs, a name means the user's jobs, if any of them has it.
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
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.remote.elsewhere import machine_behind
from zerotools.jobs.client.submissions import Submission
from zerotools.jobs.states import TERMINAL, in_words
from zerotools.jobs.tables.spec import SLURM

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

PREFIX = "slurm:"
"""How the number of a job begins that Slurm has without a daemon."""


def jobs_client(
    socket: Path | None, references: Iterable[str | None] = ()
) -> DaemonClient | SlurmJobs:
    """Return the daemon, or Slurm if `references` name jobs of it; also Slurm if no daemon has ever
    listened here and it has jobs. Raises BadRequest: they name both."""
    named = [each for each in references if each is not None]
    under_slurm = [each for each in named if each.startswith(PREFIX)]
    if under_slurm and len(under_slurm) < len(named):
        other = next(each for each in named if not each.startswith(PREFIX))
        raise BadRequest(
            f"{under_slurm[0]} is a job of Slurm and {other} one of the daemon; name them in two "
            "commands"
        )
    client = DaemonClient(socket)
    if under_slurm or (socket is None and not client.socket.exists() and has_slurm_jobs()):
        from zerotools.jobs.slurm.slurm_jobs import SlurmJobs  # most commands do without

        return SlurmJobs()
    return client


def submits_without_daemon(
    client: DaemonClient, jobs: Sequence[Submission], *, no_daemon: bool, dry_run: bool
) -> bool:
    """Return whether jobs go from here to Slurm: they are for it, and no daemon answers to watch
    them, or none is wanted. Raises BadRequest: none of them is, and --no-daemon was given."""
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
    """Return whether any job was submitted to Slurm from here."""
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
    """Return numbers of the newest jobs, or names once a letter was typed; nothing without a
    daemon."""
    socket: Path | None = context.params.get("socket")
    try:
        client = DaemonClient(socket, timeout_seconds=_COMPLETION_SECONDS)
        jobs = client.jobs(limit=_MAX_COMPLETED)
    except ZerotoolsError:
        return []
    described = {
        str(job["id"]): f"{job['name'] or ''} {in_words(job['state'])}".strip() for job in jobs
    }
    if incomplete and not incomplete.isdecimal():
        described = {
            str(job["name"]): in_words(job["state"]) for job in reversed(jobs) if job["name"]
        }
    return [
        CompletionItem(word, help=text)
        for word, text in described.items()
        if word.startswith(incomplete)
    ]


job_argument = click.argument(
    "reference", metavar="[JOB]", required=False, shell_complete=_complete
)
"""One job: its number or its name; by default the newest job."""
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
    """Return the job of `reference`, or with an @ the unfinished jobs of an array (with `over` all
    of them), the first one first: `@7` by the number of its first, `@tiny` by the name.

    Raises BadRequest: it does not exist.
    """
    if not reference.startswith("@") or not isinstance(client, DaemonClient):
        return [find_job(client, reference)]
    number = int(_first_of(client, reference)["array"]["id"])
    known = client.jobs_of_array(number)[::-1]
    found = [job for job in known if over or job["state"] not in TERMINAL]
    if not found:
        raise BadRequest(f"{reference}: all jobs of the array {number} have ended")
    return found


def job_numbers(client: DaemonClient, reference: str) -> list[int]:
    """Return the jobs of `reference`, with an @ all of an array, also finished ones. Raises
    BadRequest: it does not exist."""
    return [int(job["id"]) for job in find_jobs(client, reference, over=True)]


def array_member(client: DaemonClient, reference: str) -> int:
    """Return the number of a job of the array `reference`, `@7` or `@tiny`. Raises BadRequest: it
    does not exist."""
    return int(_first_of(client, reference)["id"])


def _first_of(client: DaemonClient, reference: str) -> dict[str, Any]:
    word = reference[1:]
    first = find_job(client, word if is_number(word) else f"{word}-0")
    if first.get("array") is None:
        raise BadRequest(f"{reference}: job {first['id']} is not part of an array")
    return first


def find_job(client: DaemonClient | SlurmJobs, reference: str | None) -> dict[str, Any]:
    """Return the job of `reference`.

    Raises:
        BadRequest: it does not exist, or several unfinished jobs have the name.
    """
    if not isinstance(client, DaemonClient):
        return client.find(reference)
    if reference is None:
        return _newest(client)
    if reference.startswith(PREFIX):
        raise BadRequest(
            f"{reference}: this command is for jobs of a daemon; for jobs of Slurm without a "
            "daemon use cancel, logs, queue, retry, show or wait"
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
        raise BadRequest(f"jobs {numbers} have the name {reference!r}; give the number of one")
    return dict((going or named)[0])


def is_number(reference: str) -> bool:
    """Return whether `reference` is the number of a job: 007 is not, but may be a name."""
    return reference.isascii() and reference.isdecimal() and not reference.startswith("0")


def finished_job_numbers(client: DaemonClient, references: Sequence[str]) -> list[int]:
    """Return the jobs of `references` for a command on finished jobs, each once.

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
    """Return the newest of the caller's jobs, or of all jobs if the caller has none, like root with
    another user's daemon."""
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
    """Return the jobs of this name, the newest first: only the caller's jobs if any of them has
    it."""
    machine = machine_behind(client.socket)
    own = os.getuid() if machine is None else machine.uid
    found = client.jobs_named(name)
    return [job for job in found if job["uid"] == own] or found
