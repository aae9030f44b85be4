"""`zerotools retry`: run a job that is over again, from the start."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_views.describe import title
from zerotools.cli.job_views.job_reference import find_job, member_of, one_job_argument
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.remote.elsewhere import machine_behind


@click.command("retry")
@one_job_argument
@click.option(
    "--output-dir", type=click.Path(), metavar="DIR", help="Where the new job writes, instead."
)
@socket_option
@json_option
def command(reference: str, output_dir: str | None, socket: Path | None, as_json: bool) -> None:
    """Queue a finished job again, from the start: a new job with the same job file.

    It gets a new number and, if the old job chose no output_dir, a new output directory. A job with
    checkpoints in its output_dir needs another directory, as at a new submit: checkpoints are never
    replaced. To continue from the newest checkpoint instead, use zerotools resume. @7 and @tiny are
    all jobs of an array, which become a new array, each with DIR/INDEX of --output-dir.
    """
    if output_dir == "":
        raise BadRequest("--output-dir: is empty; name a directory, or leave the option out")
    client, place = DaemonClient(socket), output_dir
    if place is not None and machine_behind(socket) is None:
        place = str(Path.cwd() / place)
    if reference.startswith("@"):
        _retry_array(client, reference, place, as_json=as_json)
        return
    job = client.retry(int(find_job(client, reference)["id"]), output_dir=place)
    if as_json:
        render.print_json({"jobs": [job]})
        return
    click.echo(f"{title(job)} is queued; it begins from the start in {job['output_dir']}")


def _retry_array(client: DaemonClient, reference: str, place: str | None, *, as_json: bool) -> None:
    body = {} if place is None else {"output_dir": place}
    jobs = client.of_array(member_of(client, reference), body, "/retry")["jobs"]
    if as_json:
        render.print_json({"jobs": jobs})
        return
    for job in jobs:
        click.echo(f"{title(job)} is queued; it begins from the start in {job['output_dir']}")
    click.echo(f"they are the array @{jobs[0]['array']['id']}")
