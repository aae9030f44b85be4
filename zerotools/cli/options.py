"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, else the usual place]",
)
