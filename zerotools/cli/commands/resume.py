"""`zerotools resume`: the older name of `retry`, and of `release` for held jobs."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_actions.job_reference import find_job, job_argument, jobs_client
from zerotools.cli.job_actions.send_job_requests import continue_job, refuse_nodes, release_sentence
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.options.submission_options import nodes_of, nodes_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import HELD


@click.command("resume")
@job_argument
@nodes_option("Number of nodes, for a job under Slurm without a daemon; 2-4: Slurm chooses.")
@socket_option
@json_option
def command(reference: str | None, nodes: str | None, socket: Path | None, as_json: bool) -> None:
    """Continue a job that has ended, or that the daemon holds.

    Use zerotools retry for a job that has ended, and zerotools release for a held job. Without JOB,
    the newest job is meant.
    """
    asked = {} if nodes is None else nodes_of(nodes)
    client = jobs_client(socket, [reference])
    if isinstance(client, DaemonClient):
        before = find_job(client, reference)
        if before["state"] == HELD:
            refuse_nodes(asked)
            job = client.release(int(before["id"]))
            if as_json:
                render.print_json({"jobs": [job]})
            else:
                click.echo(release_sentence(job))
            return
        reference = str(before["id"])
    continue_job(socket, reference, asked=asked, as_json=as_json)
