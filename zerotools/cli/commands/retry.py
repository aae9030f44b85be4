"""`zerotools retry`: run a finished job again, from its newest checkpoint or from the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from zerotools.cli.job_actions.job_reference import array_member, find_job, job_argument
from zerotools.cli.job_actions.send_job_requests import continue_job, restart_words
from zerotools.cli.job_views.describe_job import title
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.options.submission_options import nodes_of, nodes_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("retry")
@job_argument
@click.option(
    "--from-start", is_flag=True, help="Start from step 1 instead of the newest checkpoint."
)
@click.option(
    "--output-dir",
    type=click.Path(),
    metavar="DIR",
    help="Start from step 1, with this output directory.",
)
@nodes_option("Number of nodes, for a job under Slurm without a daemon; 2-4: Slurm chooses.")
@socket_option
@json_option
def command(
    reference: str | None,
    from_start: bool,
    output_dir: str | None,
    nodes: str | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Queue an ended job again, as a new job with the same job file.

    The new job continues from the newest complete checkpoint in the same directory. Without a
    checkpoint it begins with step 1. A successful job is refused, because all its steps are done.
    The exception is your own program (engine "script"): only you know whether it has more to do, so
    it runs again and gets its newest checkpoint.

    With --from-start the new job begins with step 1. If the old job file does not set output_dir,
    the new job gets a new output directory. If it sets one that has checkpoints, name another
    directory (--output-dir), as for a new submit: checkpoints are never replaced.

    Without JOB, the newest job is meant. @7 and @tiny are the jobs of an array. The jobs of the
    array that have not succeeded (with --from-start: all) become a new array. With --output-dir,
    each job writes to DIR/INDEX.
    """
    if output_dir == "":
        raise BadRequest("--output-dir: is empty; name a directory, or leave the option out")
    from_start = from_start or output_dir is not None
    of_array = reference is not None and reference.startswith("@")
    if of_array and nodes is not None:
        raise BadRequest(
            "--nodes is for one job, not for an array; leave --nodes out, or name one job"
        )
    if not from_start and not of_array:
        asked = {} if nodes is None else nodes_of(nodes)
        continue_job(socket, reference, asked=asked, as_json=as_json)
        return
    if nodes is not None:
        raise BadRequest(
            "--nodes is for a job that continues from its newest checkpoint; leave --nodes out"
        )
    client, place = DaemonClient(socket), output_dir
    if place is not None and machine_behind(socket) is None:
        place = str(Path.cwd() / place)
    if reference is not None and of_array:
        body: dict[str, object] = {} if place is None else {"output_dir": place}
        if not from_start:
            body["from_start"] = False
        _retry_array(client, reference, body, as_json=as_json)
        return
    job = client.retry(int(find_job(client, reference)["id"]), output_dir=place)
    if as_json:
        render.print_json({"jobs": [job]})
        return
    click.echo(f"{title(job)} is queued; it starts from step 1 in {job['output_dir']}")


def _retry_array(
    client: DaemonClient, reference: str, body: Mapping[str, object], *, as_json: bool
) -> None:
    jobs = client.of_array(array_member(client, reference), body, "/retry")["jobs"]
    if as_json:
        render.print_json({"jobs": jobs})
        return
    for job in jobs:
        begins = restart_words(job) if "from_start" in body else "starts from step 1"
        click.echo(f"{title(job)} is queued; it {begins} in {job['output_dir']}")
    click.echo(f"together the jobs are array @{jobs[0]['array']['id']}")
