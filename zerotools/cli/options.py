"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.core.errors import BadRequest

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, else the usual place]",
)


def _job_number(context: click.Context, parameter: click.Parameter, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and value.strip("0")):
        raise BadRequest(f"{value} is no job: give its number, which `zerotools queue` lists")
    return int(value)


job_argument = click.argument("job_id", metavar="JOB", callback=_job_number)
