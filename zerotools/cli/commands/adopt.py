"""`zerotools adopt`: watch a training that was started by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.describe_job import title
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.durations import duration_text, seconds_of
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient

LARGEST_PID = 2**22


@click.command("adopt")
@click.argument("pid", type=click.IntRange(1, LARGEST_PID))
@click.option("--name", metavar="NAME", help="Name of the job.  [default: the program's name]")
@click.option(
    "--time-limit", metavar="SPAN", help="Stop the process after this time, such as 90m or 1d12h."
)
@click.option(
    "--checkpoint-dir",
    type=click.Path(),
    metavar="DIR",
    help="Directory of the process's checkpoints.",
)
@socket_option
@json_option
def command(
    pid: int,
    name: str | None,
    time_limit: str | None,
    checkpoint_dir: str | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Watch the process PID, which you started by hand, as a job.

    The process is then in the queue, with its memory and its newest checkpoint. Your notifications
    include its end, and other jobs can wait for it. zerotools does not start it or read its output,
    and ends it only at the time limit that you set (first with SIGTERM). zerotools cancel stops the
    watching, and the process continues.

    PID should be the process that ends last: torchrun rather than one of its ranks.
    """
    wanted: dict[str, Any] = {"pid": pid, "name": name, "time_limit": _limit(time_limit)}
    if checkpoint_dir == "":
        raise BadRequest("--checkpoint-dir: is empty; name a directory, or leave the option out")
    if checkpoint_dir is not None and machine_behind(socket) is None:
        checkpoint_dir = str(Path.cwd() / checkpoint_dir)
    wanted["checkpoint_dir"] = checkpoint_dir
    answer = DaemonClient(socket).adopt({k: v for k, v in wanted.items() if v is not None})
    if as_json:
        render.print_json({"jobs": [answer["job"]], "watched": answer["watched"]})
        return
    job, watched = answer["job"], answer["watched"]
    below, gpus = len(watched["below"]), len(watched["gpu_uuids"])
    more = f" and {count_text(below, 'process', 'processes')} that it started" if below else ""
    click.echo(f"{title(job)} watches process {pid}{more}; GPUs that it uses now: {gpus or 'none'}")
    if job["reason"]:
        click.echo(f"the process is not watched yet: {render.clean(str(job['reason']))}")
    if (limit := wanted["time_limit"]) is not None:
        click.echo(f"the process is stopped after {duration_text(limit)} if it still runs then")


def _limit(text: str | None) -> int | None:
    try:
        return None if text is None else seconds_of(text)
    except ValueError as error:
        raise BadRequest(f"--time-limit {text}: {error}") from None
