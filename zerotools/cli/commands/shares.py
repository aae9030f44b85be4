"""`zerotools shares`: show the GPU time of each user, and the configured shares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.binding.durations import duration_text
from zerotools.jobs.client.daemon_client import DaemonClient

HEADERS = ("user", "weight", "share", "used", "GPU-hours", "in all", "GPUs", "waiting", "factor")


@click.command("shares")
@socket_option
@json_option
def command(socket: Path | None, as_json: bool) -> None:
    """Show the GPU time of each user, and the user with the jobs that start first.

    Past usage counts half after each half-life ([shares] of the daemon's configuration). Among jobs
    of one priority, the jobs of the user with the highest factor start first. The factor is 1 for a
    user without usage, 0.5 if the usage equals the user's share, and less if it is higher.
    """
    found = DaemonClient(socket).shares()
    if as_json:
        render.print_json(found)
        return
    if not found["users"]:
        click.echo("no user has waiting GPU jobs or recent GPU time")
        return
    columns = render.terminal_columns(sys.stdout)
    rows = [_row(user) for user in found["users"]]
    render.print_lines(render.table(HEADERS, rows, right=HEADERS[1:], columns=columns))
    click.echo(
        f"{duration_text(found['half_life_seconds'])} after its use, GPU time counts half as much"
    )
    if not found["fair"]:
        click.echo("jobs start in the order of their numbers, because [shares] has fair = false")


def _row(user: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(user["name"]),
        f"{user['weight']:g}",
        f"{user['share']:.1%}",
        f"{user['used']:.1%}",
        f"{user['gpu_hours']:.1f}",
        f"{user['gpu_hours_in_all']:.1f}",
        str(user["gpus"]),
        str(user["waiting"]),
        f"{user['factor']:.2f}",
    )
