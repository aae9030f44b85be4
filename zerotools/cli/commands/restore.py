"""`zerotools restore`: restore the daemon's queue from a copy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, state_dir_option
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.client import queue_backup
from zerotools.jobs.client.daemon_address import default_state_dir


@click.command("restore")
@click.argument("backup", metavar="FILE", type=click.Path(path_type=Path))
@state_dir_option
@click.option(
    "--release",
    is_flag=True,
    help="Let waiting jobs of the copy start; by default they are held.",
)
@json_option
def command(backup: Path, state_dir: Path | None, release: bool, as_json: bool) -> None:
    """Restore the queue from FILE, a copy by `zerotools backup`. Stop the daemon first.

    The old files are kept in the same directory. At its next start the daemon compares the queue
    with the run directories: jobs that have ended since the copy stay ended, and running attempts
    are continued. All other unfinished jobs are held, because the copy does not have their results:
    `zerotools release` lets a job continue, `zerotools cancel` ends it.
    """
    copy, kept = queue_backup.restore_queue(
        backup.absolute(), (state_dir or default_state_dir()).absolute(), release=release
    )
    if as_json:
        render.print_json({"copy": asdict(copy), "kept": kept})
        return
    click.echo(
        f"the queue has {count_text(copy.jobs, 'job')}, {copy.unfinished} of them unfinished"
    )
    for path in kept:
        click.echo(f"kept: {path}")
