"""`zerotools resume`: go on with a job that was stopped, cancelled, or failed."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli import render
from zerotools.cli.describe import title
from zerotools.cli.options import json_option, socket_option
from zerotools.jobs.client import DaemonClient


@click.command("resume")
@click.argument("job_id", metavar="JOB", type=click.IntRange(min=1))
@socket_option
@json_option
def command(job_id: int, socket: Path | None, as_json: bool) -> None:
    """Go on with a job that is over: a new job, in the same directory.

    It runs the same job file from the newest checkpoint that is whole, or from the start where
    there is none.
    """
    job = DaemonClient(socket).resume(job_id)
    if as_json:
        render.print_json(job)
        return
    from_where = (
        "goes on from the newest checkpoint" if job["spec"].get("resume_from") else "begins"
    )
    click.echo(f"{title(job)} is queued; it {from_where} in {job['output_dir']}")
