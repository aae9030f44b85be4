"""`zerotools backup`: copy the daemon's queue while it is in use."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, state_dir_option
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.client import queue_backup
from zerotools.jobs.client.daemon_address import default_state_dir


@click.command("backup")
@click.argument("out", metavar="FILE", type=click.Path(path_type=Path))
@state_dir_option
@json_option
def command(out: Path, state_dir: Path | None, as_json: bool) -> None:
    """Copy the queue to a new FILE. The daemon and its jobs may run meanwhile.

    The copy has jobs, attempts and events, but no logs and no checkpoints. Do not copy zerotools.db
    itself: without its other files, that copy lacks the newest jobs.
    """
    copy = queue_backup.back_up_queue((state_dir or default_state_dir()).absolute(), out.absolute())
    if as_json:
        render.print_json({"copy": asdict(copy)})
    else:
        click.echo(f"{out}: {count_text(copy.jobs, 'job')}, {copy.unfinished} of them unfinished")
