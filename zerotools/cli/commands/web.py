"""`zerotools web`: print a link to the page for browsers."""

from __future__ import annotations

import html
import os
import socket as network
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.binding.durations import duration_text
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("web")
@click.option("--open", "opens", is_flag=True, help="Open the link in the browser of this machine.")
@click.option("--end", is_flag=True, help="End all your browser sessions, and print no link.")
@socket_option
@json_option
def command(opens: bool, end: bool, socket: Path | None, as_json: bool) -> None:
    """Print a link that shows the queue in a browser.

    The link works once, for a short time. The browser then has your rights: it shows the jobs that
    you may see, submits jobs, and changes the jobs that you may change. The page listens only at
    127.0.0.1; from another machine, forward the port with ssh.
    """
    if opens and end:
        raise BadRequest("--open and --end cannot be combined; leave one out")
    client = DaemonClient(socket)
    if end:
        ended = client.end_web_sessions()
        if as_json:
            render.print_json({"ended": ended})
        else:
            click.echo(f"{count_text(ended, 'session')} ended")
        return
    found = client.web_link()
    if as_json:
        render.print_json(found)
    else:
        click.echo(found["url"])
        seconds = int(found["expires_seconds"])
        click.echo(f"The link works once, within {duration_text(seconds)}.", err=True)
        if (host := _other_machine(client.socket)) is not None:
            port = found["port"]
            click.echo(
                f"On another machine, first run: ssh -N -L {port}:127.0.0.1:{port} {host}", err=True
            )
    if opens:
        _open(found["url"])


def _other_machine(socket: Path) -> str | None:
    """Return the name under which ssh reaches this machine, if the browser is probably on another
    machine; None if the browser is probably on this machine.
    """
    machine = machine_behind(socket)
    if machine is not None:
        return machine.host
    return network.gethostname() if os.environ.get("SSH_CONNECTION") else None


def _open(url: str) -> None:
    """Open the browser with a private file that redirects to the link.

    The link itself is not an argument of the browser. Every user of the machine can read the
    arguments of processes, and could use the link first.
    """
    import webbrowser  # it searches for programs, which only this needs

    if not webbrowser.open(_private_page(url).as_uri()):
        raise Unsupported(
            "no browser could be started here; copy the link above into a "
            "browser, or run zerotools web again"
        )


def _private_page(url: str) -> Path:
    """Write a page that redirects to the link and that only this user can read. Return its path.

    If possible, the page is in a directory that is removed when the user logs out.
    """
    import tempfile

    of_login = os.environ.get("XDG_RUNTIME_DIR", "")  # after su it is another user's
    place = of_login if os.access(of_login, os.W_OK | os.X_OK) else None
    directory = tempfile.mkdtemp(prefix="zerotools-web-", dir=place)
    page = Path(directory) / "open.html"
    leads = f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
    page.write_text(f"<!doctype html>\n<title>zerotools</title>\n{leads}\n", "utf-8")
    return page
