"""`zerotools queue`: list the jobs, one line each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.job_reference import has_slurm_jobs
from zerotools.cli.job_views.describe_job import is_over, queue_order
from zerotools.cli.job_views.queue_table import folded, machine_lines, queue_lines
from zerotools.cli.options.click_options import (
    SELECTION,
    GroupedCommand,
    json_option,
    option,
    pager_option,
    socket_option,
)
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name
from zerotools.cli.output.pager import print_paged
from zerotools.core.errors import BadRequest, DaemonError, DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import STATES, TERMINAL
from zerotools.sensors.snapshot import Snapshot

ME, ALL = "me", "all"


@click.command("queue", cls=GroupedCommand)
@option("-a", "--all", "show_all", group=SELECTION, is_flag=True, help="List finished jobs, too.")
@option("--named", "name", group=SELECTION, metavar="NAME", help="List only jobs with this name.")
@option(
    "--user",
    group=SELECTION,
    metavar="NAME",
    help="List only jobs of this user (all, me, a name or a uid).",
)
@option("--mine", group=SELECTION, is_flag=True, help="List only your jobs.")
@option(
    "--limit",
    group=SELECTION,
    type=click.IntRange(min=1),
    metavar="N",
    help="List only the newest N jobs.",
)
@pager_option
@socket_option
@json_option
def command(
    show_all: bool,
    name: str | None,
    user: str | None,
    mine: bool,
    limit: int | None,
    pager: str,
    socket: Path | None,
    as_json: bool,
) -> None:
    """List waiting and running jobs, and why they wait.

    Running jobs come first, then waiting jobs by priority, then finished jobs, the newest first.

    The age of a finished job is the time since its end. An array is one line, with the number that
    commands take for all its jobs (@7); with --all, each job has its own line. The owner is shown
    if there are jobs of several users, or with --user or --mine. For jobs of other users, only
    administrators see more than the owner and the state.
    """
    if mine and user not in (None, ME):
        raise BadRequest(f"--mine and --user {user} contradict each other; leave one out")
    shows_user = mine or user is not None
    user = ME if mine else None if user == ALL else user
    client, attended = DaemonClient(socket), False
    try:
        if name is not None:
            jobs = named_jobs(client, name, user=user, show_all=show_all)
        else:
            jobs = all_jobs(client, limit, user=user) if show_all else open_jobs(client, user=user)
        drain = None if as_json else client.health().get("drain")
    except DaemonUnreachable:
        if socket is not None or not has_slurm_jobs():
            raise
        jobs, drain, attended = [], None, True
    under_slurm = _jobs_of_slurm(socket, name, limit, show_all=show_all, attended=attended)
    jobs = sorted([*jobs, *under_slurm], key=lambda job: float(job["created"]))
    left_out = 0 if limit is None else max(0, len(jobs) - limit)
    jobs = jobs[left_out:]
    drained = drain_line(drain)
    if drained and not jobs:
        click.echo(drained)
    if as_json:
        render.print_json({"jobs": jobs})
    elif jobs:
        jobs = sorted(jobs, key=queue_order)
        shown = jobs if show_all else folded(jobs)
        columns = render.terminal_columns(sys.stdout)
        lines = [drained] if drained else []
        if columns is not None and name is None and user is None:
            lines += _machine(client, jobs, columns)
        lines += queue_lines(shown, columns, shows_user=shows_user)
        if left_out:
            lines.append(f"... older jobs are left out (--limit {limit})")
        print_paged(lines, pager)
    elif name is not None:
        which = "job" if show_all else "waiting or running job"
        click.echo(f"no {which} has the name {render.clean(name)}")
    elif user is not None:
        which = "job" if show_all else "waiting or running job"
        click.echo(f"no {which} is {'yours' if user == ME else f'owned by {render.clean(user)}'}")
    elif show_all:
        click.echo(f"the queue has no jobs; add one with: {command_name()} submit JOBFILE")
    else:
        click.echo(f"no job waits or runs; list finished jobs with: {command_name()} queue --all")


def _machine(client: DaemonClient, jobs: Sequence[Mapping[str, Any]], columns: int) -> list[str]:
    """Return the lines about the machine; empty if the daemon does not describe it."""
    try:
        machine = client.machine()
    except DaemonError:  # an older daemon, or it has ended meanwhile
        return []
    if machine["snapshot"] is None:
        return []
    snapshot = Snapshot.from_json(machine["snapshot"])
    return machine_lines(snapshot, machine["leases"], jobs, columns)


def _jobs_of_slurm(
    socket: Path | None,
    name: str | None,
    limit: int | None,
    *,
    show_all: bool,
    attended: bool,
) -> list[dict[str, Any]]:
    """Return the user's jobs under Slurm; `attended` includes those in the queue of a daemon.

    Of the finished jobs, only as many as `limit` allows are read, and one more.
    """
    if socket is not None or not has_slurm_jobs():
        return []
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs  # most users have no such jobs

    most = limit + 1 if limit is not None and show_all else None
    found = SlurmJobs().jobs(ended=show_all, attended=attended, name=name, most=most)
    return [job for job in found if show_all or not is_over(job)]


def drain_line(drain: Mapping[str, Any] | None) -> str | None:
    """Return a sentence about the drain, during which the daemon starts no jobs; None if the daemon
    is not drained.
    """
    if drain is None:
        return None
    why = f" ({render.clean(drain['why'])})" if drain["why"] else ""
    since, who = (
        render.moment(drain["since"]),
        render.clean(str(drain.get("user") or f"uid {drain['uid']}")),
    )
    return f"drained since {since} by {who}{why}: nothing starts until zerotools undrain"


def all_jobs(
    client: DaemonClient, most: int | None = None, *, user: str | None = None
) -> list[dict[str, Any]]:
    """Return all jobs, or all jobs of `user`, the oldest first.

    With `most`, return only the newest `most + 1` jobs. The caller shows `most` jobs, and learns
    from the additional job that there are more.
    """
    found = list(islice(client.every_job(user=user), None if most is None else most + 1))
    return found[::-1]


def named_jobs(
    client: DaemonClient, name: str, *, user: str | None = None, show_all: bool
) -> list[dict[str, Any]]:
    """Return the jobs with this name (of this `user`, if given), the oldest first. Finished jobs
    are included only with `show_all`."""
    found = client.jobs_named(name, user=user)[::-1]
    return [job for job in found if show_all or not is_over(job)]


def open_jobs(client: DaemonClient, *, user: str | None = None) -> list[dict[str, Any]]:
    """Return all unfinished jobs, or only the unfinished jobs of `user`, the oldest first.

    The states are requested one after another, in the order in which jobs pass through them. So a
    job that changes its state between two requests is not missed. If a job is in two answers, the
    later answer is used.
    """
    found: dict[int, dict[str, Any]] = {}
    for state in (state for state in STATES if state not in TERMINAL):
        for job in client.every_job(state=state, user=user):
            found[job["id"]] = job
    return [found[job_id] for job_id in sorted(found)]
