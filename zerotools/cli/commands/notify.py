"""`zerotools notify`: test the places that get notifications."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.errors import EXIT_DIFFERENCES, EXIT_DONE
from zerotools.jobs.client.daemon_client import DaemonClient

HEADERS = ("place", "service", "kind", "delivered", "answer")


@click.command("notify")
@click.argument("action", type=click.Choice(["test"]))
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="NAME",
    help="Test only this destination (a name of [[notify.places]]).  [default: all]",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Send only this kind of notification.  [default: all kinds that the destination gets]",
)
@socket_option
@json_option
def command(
    action: str,
    places: tuple[str, ...],
    kinds: tuple[str, ...],
    socket: Path | None,
    as_json: bool,
) -> int:
    """Send an example of each notification to each configured destination, and show the answers.

    The daemon sends the examples with the settings in [notify] of its configuration. Only
    administrators may use this command. The exit status is 1 if a destination did not accept a
    notification.
    """
    found = DaemonClient(socket).test_notices(places, kinds)
    sent = found["sent"]
    if as_json:
        render.print_json(found)
    elif not sent:
        click.echo("no notifications are sent: each `on` in [notify] is empty")
    else:
        rows = [
            (
                render.clean(each["place"]),
                each["service"],
                each["notice"],
                "yes" if each["delivered"] else "no",
                render.clean(each["answer"]),
            )
            for each in sent
        ]
        columns = render.terminal_columns(sys.stdout)
        render.print_lines(render.table(HEADERS, rows, columns=columns))
    is_done = bool(sent) and all(each["delivered"] for each in sent)
    return EXIT_DONE if is_done else EXIT_DIFFERENCES
