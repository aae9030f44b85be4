"""`zerotools resume`: continue a job that was stopped, cancelled or held, or that failed."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_views.describe import title
from zerotools.cli.job_views.job_reference import find_job, job_argument
from zerotools.cli.job_views.which_jobs import jobs_client
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.options.slurm_options import nodes_of, nodes_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import SUCCEEDED


@click.command("resume")
@job_argument
@nodes_option("How many nodes, for a job that Slurm has without a daemon; 2-4: as Slurm gives.")
@socket_option
@json_option
def command(reference: str | None, nodes: str | None, socket: Path | None, as_json: bool) -> None:
    """Continue a finished job: a new job in the same directory.

    It runs the same job file from the newest complete checkpoint, or from the start if there is no
    checkpoint. A held job continues as the same job. JOB is a number or a name; without it, the
    newest job is meant.

    A successful job is refused, because all its steps are done. The exception is your own program
    (engine "script"): only you know whether it has more to do, so it runs again and gets its newest
    checkpoint. To run a job from its start, submit its job file again.
    """
    asked = {} if nodes is None else nodes_of(nodes)
    client = jobs_client(socket, [reference])
    before = find_job(client, reference)
    if not isinstance(client, DaemonClient):
        job = client.resume(before["id"], **asked)
        if as_json:
            render.print_json({"jobs": [job]})
        else:
            click.echo(f"{title(job)} is {job['state']}; it goes on in {job['output_dir']}")
        return
    if nodes is not None:
        raise BadRequest("--nodes is for jobs that were submitted to Slurm without a daemon")
    job_id = int(before["id"])
    job = client.resume(job_id)
    if as_json:
        render.print_json({"jobs": [job]})
        return
    if job["id"] == job_id:
        click.echo(f"{title(job)} is no longer held: it is {str(job['state']).replace('_', ' ')}")
        return
    from_where = (
        "resumes from the newest checkpoint" if job["spec"].get("resume_from") else "begins"
    )
    click.echo(f"{title(job)} is queued; it {from_where} in {job['output_dir']}")
    if before["state"] == SUCCEEDED:
        click.echo(f"note: job {job_id} had succeeded: this is another run of its program")
