"""Queueing the jobs of a command: all or none are refused, and each that is queued is announced."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import click

from zerotools.cli.job_views.describe import Job
from zerotools.cli.output.failure import report_error
from zerotools.cli.output.messages import called, say
from zerotools.core.errors import AnswerLost, DaemonUnreachable, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submissions import Submission, conflicts, with_source


def check_all(
    client: DaemonClient, submissions: Sequence[Submission], *, models: bool = False, show: int = 0
) -> list[dict[str, Any] | None]:
    """Raise the refusals of any of the jobs, naming its file; all but the last go to stderr. With
    `models`, also the ranks' refusals of the models. Raises DaemonUnreachable.

    Return a preview of `show` examples of each job; empty if none is requested.
    """
    refusals: list[ZerotoolsError] = list(conflicts(submissions))
    samples: list[dict[str, Any] | None] = []
    for each in submissions:
        try:
            if show:
                notes, sample = client.check_and_show(each.spec, show, each.terms)
                samples.append(sample)
            else:
                notes = client.check(each.spec, model=models, terms=each.terms)
            for note in notes:
                say("note", f"{each.source}: {note}")
        except DaemonUnreachable:
            if not refusals:
                raise
            break
        except ZerotoolsError as error:
            refusals.append(with_source(each.source, error))
    for refusal in refusals[:-1]:
        report_error(refusal)
    if refusals:
        raise refusals[-1]
    return samples


def queue_all(
    client: DaemonClient,
    submissions: Sequence[Submission],
    queued: Callable[[Job], None],
    key: str | None = None,
) -> list[Job]:
    """Queue the jobs in order; `queued` is called for each as soon as it is durable. `key` is the
    idempotency key of a single job; None: a new one for each.

    A refusal or a failure is raised with the files that were queued, that may be, and that were
    not.
    """
    jobs: list[Job] = []
    for number, each in enumerate(submissions):
        try:
            jobs.append(_queue(client, each, key or uuid.uuid4().hex))
        except KeyboardInterrupt:
            _tell_rest(submissions, jobs, number, lost=True)
            raise
        except ZerotoolsError as error:
            _tell_rest(submissions, jobs, number, lost=isinstance(error, AnswerLost))
            raise with_source(each.source, error) from error
        queued(jobs[-1])
    return jobs


def _queue(client: DaemonClient, submission: Submission, key: str) -> Job:
    """Submit with a key, so that asking again after a lost answer does not queue it twice."""
    try:
        return client.submit(submission.spec, idempotency_key=key, terms=submission.terms)
    except AnswerLost as lost:
        try:
            return client.submit(submission.spec, idempotency_key=key, terms=submission.terms)
        except DaemonUnreachable:
            raise lost from None  # it may have queued the job before it went


def _tell_rest(
    submissions: Sequence[Submission], jobs: Sequence[Job], failed: int, *, lost: bool
) -> None:
    if len(submissions) == 1:
        if lost:
            say("warning", f"{submissions[0].source} may be queued; see {called()} queue --all")
        return
    done = [
        f"{each.source} (job {job['id']})" for each, job in zip(submissions, jobs, strict=False)
    ]
    parts = [f"queued: {', '.join(done) or 'none'}"]
    rest = [each.source for each in submissions[failed:]]
    if lost:
        parts.append(f"not known, see {called()} queue: {rest.pop(0)}")
    if rest:
        parts.append(f"not queued: {', '.join(rest)}")
    click.echo("; ".join(parts), err=True)
