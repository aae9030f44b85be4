"""A newly submitted job, followed to its end."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from zerotools.cli.job_views.describe import (
    Job,
    checkpoint_path,
    exported_model,
    outcome,
    title,
)
from zerotools.cli.job_views.follow import Follower
from zerotools.cli.job_views.polling import Poller
from zerotools.cli.output import render
from zerotools.cli.output.messages import called
from zerotools.core.errors import EXIT_INTERRUPTED
from zerotools.jobs.client.daemon_client import DaemonClient

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


def follow_submitted(
    client: DaemonClient | SlurmJobs, job: Job, poller: Poller, *, as_json: bool
) -> int:
    """Follow the job until it has ended, and return the exit status; Ctrl-C leaves it running.

    Progress goes to stdout; to stderr where stdout is for JSON, which has the job however that
    ends. Raises JobFailed.
    """
    follower = Follower(client, job, sys.stderr if as_json else sys.stdout, poller)
    try:
        ended = follower.run()
    except KeyboardInterrupt:
        click.echo(
            f"\n{title(job)} continues in the background; read its log: {called()} logs -f "
            f"{job['id']}, stop it: {called()} cancel {job['id']}",
            err=True,
        )
        return EXIT_INTERRUPTED
    finally:
        if as_json:
            render.print_json({"dry_run": False, "jobs": [follower.job]})
    if as_json:
        return 0
    click.echo(f"{title(ended)} {outcome(ended)}")
    if path := checkpoint_path(ended):
        click.echo(f"  contents      zerotools inspect {shlex.quote(str(path))}")
    if model := exported_model(ended):
        click.echo(f"  the model    {model}")
    return 0
