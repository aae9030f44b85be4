"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from zerotools.cli.options.click_options import OUTPUT, option
from zerotools.cli.output.messages import HOST
from zerotools.core.errors import BadRequest


def _reach(context: click.Context, parameter: click.Parameter, socket: Path | None) -> Path | None:
    """Return the socket of the daemon. With --host, open an ssh tunnel to another machine and
    return its socket; the tunnel is closed when the command ends.

    Raises BadRequest, DaemonUnreachable.
    """
    host = context.find_root().params.get(HOST)
    if host is None or context.resilient_parsing:
        return socket
    if socket is not None:
        raise BadRequest(
            "--host and --socket exclude each other; a socket of another machine is named by "
            "--host ssh://HOST/PATH/OF/api.sock"
        )
    from zerotools.jobs.client.ssh_tunnel import (
        SshTunnel,
        parse_host,  # the others do without ssh
    )

    tunnel = SshTunnel(parse_host(host))
    context.call_on_close(tunnel.close)
    return tunnel.socket


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    callback=_reach,
    help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, or the standard path]",
)

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The daemon's state directory; default: the standard one.",
)


def interval_option(least: float) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option `--interval` of at least `least` seconds, for commands that poll."""
    return option(
        "--interval",
        group=OUTPUT,
        type=click.FloatRange(min=least, max=3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Time between two readings.",
    )
