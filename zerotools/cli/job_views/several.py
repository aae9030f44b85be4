"""Asking the same of several jobs: what is refused of one does not keep the others from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from zerotools.cli.job_views.describe import Job
from zerotools.cli.job_views.job_reference import find_jobs
from zerotools.cli.output import render
from zerotools.cli.output.messages import say_error
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient


def ask_each(
    client: DaemonClient,
    references: Sequence[str],
    ask: Callable[[int], dict[str, Any]],
    told: Callable[[Job], str] | None,
) -> tuple[list[dict[str, Any]], list[ZerotoolsError]]:
    """`ask` of each job once, in order, and print what `told` says of it (None: nothing). The jobs
    as they are then, and what was refused."""
    jobs: list[dict[str, Any]] = []
    errors: list[ZerotoolsError] = []
    for reference in dict.fromkeys(references):
        try:
            found = find_jobs(client, reference)
        except ZerotoolsError as error:  # the other jobs are asked all the same
            errors.append(error)
            continue
        for each in found:
            try:
                jobs.append(ask(int(each["id"])))
            except ZerotoolsError as error:
                errors.append(error)
            else:
                if told is not None:
                    click.echo(told(jobs[-1]))
    return jobs, errors


def finish(jobs: Sequence[Job], errors: Sequence[ZerotoolsError], *, as_json: bool) -> None:
    """Print the jobs as JSON, if asked; say all refusals but the last, and raise that."""
    if as_json:
        render.print_json(list(jobs))
    sys.stdout.flush()
    for refusal in errors[:-1]:
        say_error(str(refusal))
    if errors:
        raise errors[-1]
