"""`zerotools clean`: show removable data of finished jobs, confirm, and remove it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerotools.cli.job_actions.job_reference import (
    find_all_jobs,
    finished_job_numbers,
    jobs_client,
    shown_jobs_argument,
)
from zerotools.cli.options.click_options import (
    SELECTION,
    Duration,
    GroupedCommand,
    given_as,
    json_option,
    option,
    socket_option,
)
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import STATES, TERMINAL

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

HEADERS = ("id", "name", "state", "ended", "size", "removes")
RIGHT = ("id", "ended", "size")
LONGEST_NAME = 40
MAX_KEPT = 10
OVER = tuple(state for state in STATES if state in TERMINAL)
Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The options that select finished jobs, and the data to remove with them."""

    older_than: int | None
    keep: int
    states: tuple[str, ...]
    outputs: bool
    logs_only: bool


@click.command("clean", cls=GroupedCommand)
@shown_jobs_argument
@option(
    "--older-than",
    group=SELECTION,
    metavar="TIME",
    type=Duration(),
    help="Only jobs that ended at least this long ago: 30d, 12h, or seconds.",
)
@option(
    "--keep-last",
    "keep",
    group=SELECTION,
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Keep the N jobs that ended last.",
)
@option(
    "--state",
    "states",
    group=SELECTION,
    multiple=True,
    type=click.Choice(OVER),
    help="Only jobs that ended in this state; may be repeated.",
)
@option(
    "--outputs",
    group=SELECTION,
    is_flag=True,
    help="Also remove the checkpoints that the JOBs left in the state directory.",
)
@option(
    "--logs-only",
    group=SELECTION,
    is_flag=True,
    help="Keep the records; remove only logs and progress.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@socket_option
@json_option
@given_as("selection", _Selection)
def command(
    references: tuple[str, ...],
    selection: _Selection,
    dry_run: bool,
    yes: bool,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Remove finished jobs: their records, logs and events. The command lists them and asks first.

    Without a JOB, all finished jobs are selected. Checkpoints and exports are not removed: a job
    with checkpoints or exports in the daemon's state directory is kept, unless --outputs JOB names
    it. A path that an unfinished job names, such as in resume_from, is never removed.
    """
    outputs, logs_only = selection.outputs, selection.logs_only
    _refuse_contradictions(references, outputs, logs_only)
    if not (yes or dry_run) and (as_json or not sys.stdin.isatty()):
        raise BadRequest(
            "clean asks before it removes, but it cannot ask with --json or without a terminal; "
            "give --yes to remove without a question, or --dry-run to see the plan"
        )
    client = jobs_client(socket, references)
    job_ids: list[Any]
    if isinstance(client, DaemonClient):
        job_ids = list(finished_job_numbers(client, references))
    else:
        job_ids = [job["id"] for job in find_all_jobs(client, references)]
    request = {
        "jobs": job_ids or None,
        "states": list(selection.states) or None,
        "older_than_seconds": selection.older_than,
        "keep": selection.keep,
        "outputs": outputs,
        "logs_only": logs_only,
    }
    found = client.clean({**request, "dry_run": True})
    if not as_json:
        _show(found, logs_only)
    kept = list(found["kept"])
    stayed = [job for job in kept if job["id"] in job_ids]
    gone: list[Answer] = list(found["jobs"])
    try:
        if not dry_run and gone and (yes or _agreed(found)):
            gone = []
            late = _remove(client, found, gone, outputs=outputs, logs_only=logs_only, quiet=as_json)
            stayed += late
            kept += late
    finally:
        if as_json:
            render.print_json({"dry_run": dry_run, "jobs": gone, "kept": kept})
    sys.stdout.flush()
    _refuse(stayed)


def _refuse_contradictions(job_ids: Sequence[str], outputs: bool, logs_only: bool) -> None:
    if outputs and not job_ids:
        raise BadRequest("--outputs removes checkpoints; name the jobs that wrote them")
    if outputs and logs_only:
        raise BadRequest("--outputs and --logs-only contradict each other; leave one out")


def _show(found: Answer, logs_only: bool) -> None:
    if found["jobs"]:
        rows = [_row(job, logs_only) for job in found["jobs"]]
        columns = render.terminal_columns(sys.stdout)
        render.print_lines(render.table_and_remarks(HEADERS, rows, right=RIGHT, columns=columns))
    else:
        click.echo("there is nothing to remove")
    kept = [job for job in found["kept"] if not job["gone"]]
    for job in kept[:MAX_KEPT]:
        click.echo(f"kept: {_named(job)}: {render.clean(job['why'])}")
    if len(kept) > MAX_KEPT:
        more = count_text(len(kept) - MAX_KEPT, "more job")
        click.echo(f"kept: {more}; --json lists them all")


def _row(job: Answer, logs_only: bool) -> tuple[str, ...]:
    what = "logs" if logs_only else "record, logs, events"
    places = "".join(f", and ALL OF {place}" for place in job["outputs"])
    since = None if job["ended"] is None else time.time() - job["ended"]
    return (
        str(job["id"]),
        render.shorten(render.clean(job["name"] or render.UNKNOWN), LONGEST_NAME),
        job["state"],
        f"{render.duration(since)} ago",
        render.size(job["size_bytes"]),
        what + places,
    )


def _named(job: Answer) -> str:
    name = render.clean(job["name"])
    return f"job {job['id']} ({name})" if name else f"job {job['id']}"


def _agreed(found: Answer) -> bool:
    size = render.size(sum(job["size_bytes"] for job in found["jobs"]))
    count = len(found["jobs"])
    return click.confirm(f"remove {'this job' if count == 1 else f'these {count} jobs'}, {size}?")


def _remove(
    client: DaemonClient | SlurmJobs,
    found: Answer,
    gone: list[Answer],
    *,
    outputs: bool,
    logs_only: bool,
    quiet: bool,
) -> list[Answer]:
    """Remove exactly the jobs in `found`, because the user confirmed only these.

    The removed jobs are added to `gone`. Return the jobs that could not be removed. Jobs that
    another process has removed in the meantime are neither added nor returned.
    """
    stayed: list[Answer] = []
    together = [job["id"] for job in found["jobs"]]
    try:
        # With `outputs` one request for all, because jobs may share a directory. Else one for each
        # of a daemon, which then answers others in between.
        is_one = outputs or not isinstance(client, DaemonClient)
        for ids in [together] if is_one else [[job_id] for job_id in together]:
            answer = client.clean({"jobs": ids, "outputs": outputs, "logs_only": logs_only})
            gone += answer["jobs"]
            stayed += [job for job in answer["kept"] if not job["gone"]]
    finally:
        if not quiet:
            size = render.size(sum(job["size_bytes"] for job in gone))
            click.echo(f"removed: {len(gone)} job{'s' if len(gone) != 1 else ''}, {size}")
    return stayed


def _refuse(stayed: Sequence[Answer]) -> None:
    """Raise an error if jobs that the user named or confirmed could not be removed."""
    if stayed:
        said = [
            job["why"] if job["gone"] else f"{_named(job)} was kept: {job['why']}"
            for job in stayed[:MAX_KEPT]
        ]
        if len(stayed) > MAX_KEPT:
            said.append(f"and {count_text(len(stayed) - MAX_KEPT, 'more job')}")
        raise DaemonRefused("; ".join(said), status=409, code="conflict")
