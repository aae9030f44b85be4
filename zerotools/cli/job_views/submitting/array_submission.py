"""Submitting a job many times, as one array."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import click

from zerotools.cli.job_views.describe import how_it_waits, plan, title
from zerotools.cli.job_views.submitting.dry_run import dry_run_json
from zerotools.cli.output import render
from zerotools.cli.output.messages import called, say
from zerotools.core.errors import AnswerLost, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submissions import Submission, with_source
from zerotools.jobs.jobfile.parse import given_of, job_from_dict
from zerotools.jobs.sweeps import members_of


def submit_array(
    client: DaemonClient,
    submission: Submission,
    sweep: Mapping[str, list[Any]],
    count: int | None,
    key: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Queue the jobs, all of them or none, and report it; with `dry_run`, check all keys here, and
    let the daemon check the first job."""
    try:
        members = members_of(given_of(submission.spec), sweep, count)
        specs = [job_from_dict(each.tree, source=each.label or "job") for each in members]
        if dry_run:
            for note in client.check(specs[0], model=True, terms=submission.terms):
                say("note", note)
            jobs: list[dict[str, Any]] = []
        else:
            jobs = _queue(client, submission, sweep, count, key)
    except ZerotoolsError as error:
        raise with_source(submission.source, error) from error
    if as_json:
        render.print_json(dry_run_json(specs) if dry_run else {"dry_run": False, "jobs": jobs})
        return 0
    if dry_run:
        click.echo(f"{len(members)} jobs would be queued:")
        for each in members:
            click.echo(f"  {render.clean(each.label or str(each.tree.get('name')))}")
        return 0
    first, number = jobs[0], jobs[0]["array"]["id"]
    click.echo(f"{len(jobs)} jobs are {how_it_waits(first)}, from {title(first)} on: {plan(first)}")
    click.echo(f"  see them        {called()} queue --all")
    click.echo(f"  stop them all   {called()} cancel @{number}")
    click.echo(f"  wait for them   {called()} wait @{number}")
    return 0


def _queue(
    client: DaemonClient,
    submission: Submission,
    sweep: Mapping[str, list[Any]],
    count: int | None,
    key: str | None,
) -> list[dict[str, Any]]:
    """Submit with a key, so that a retry after a lost answer queues nothing twice."""
    key = key or uuid.uuid4().hex

    def ask() -> list[dict[str, Any]]:
        return client.submit_array(
            submission.spec, sweep, count, idempotency_key=key, terms=submission.terms
        )

    try:
        return ask()
    except AnswerLost:
        return ask()
