"""Submits the jobs of one command to the daemon: checks all, then queues each or a whole array."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from zerotools.cli.job_views.describe_job import Job, how_it_waits, plan, title
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name, print_message
from zerotools.cli.output.report_failure import report_error
from zerotools.core.errors import AnswerLost, BadRequest, DaemonUnreachable, ZerotoolsError
from zerotools.jobs.client.captured_environment import (
    SLURM_VARIABLES,
    capture_environment,
    named_variables,
    with_environment,
)
from zerotools.jobs.client.daemon_address import RemoteMachine
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submission_conflicts import Submission, submission_conflicts, with_source
from zerotools.jobs.job_arrays import members_of
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.notify import masked_url, wrong_url
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec, with_key
from zerotools.jobs.text.mask_secrets import HIDDEN, mask_tree


def check_all(
    client: DaemonClient, submissions: Sequence[Submission], *, models: bool = False, show: int = 0
) -> list[dict[str, Any] | None]:
    """Let the daemon check all jobs before any is queued. If jobs are refused, the last error is
    raised, and the earlier errors are printed on stderr.

    Each error names the file of its job. With `models`, the daemon also builds the models, as the
    ranks do. Return a preview of `show` examples for each job; the list is empty if `show` is 0.

    Raises:
        DaemonUnreachable: no daemon answers.
    """
    refusals: list[ZerotoolsError] = list(submission_conflicts(submissions))
    samples: list[dict[str, Any] | None] = []
    for each in submissions:
        try:
            if show:
                notes, sample = client.check_and_show(each.spec, show, each.terms)
                samples.append(sample)
            else:
                notes = client.check(each.spec, model=models, terms=each.terms)
            for note in notes:
                print_message("note", f"{each.source}: {note}")
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
    """Queue the jobs in order, and return them.

    `queued` is called for each job as soon as the daemon has stored it. `key` is the idempotency
    key of a single job. If it is None, each job gets a new key.

    If an error ends the queueing early, stderr lists the job files that are queued, may be queued,
    and are not queued. Then the error is raised.
    """
    jobs: list[Job] = []
    for number, each in enumerate(submissions):
        try:
            jobs.append(_queue(client, each, key or uuid.uuid4().hex))
        except KeyboardInterrupt:
            _print_unqueued(submissions, jobs, number, lost=True)
            raise
        except ZerotoolsError as error:
            _print_unqueued(submissions, jobs, number, lost=isinstance(error, AnswerLost))
            raise with_source(each.source, error) from error
        queued(jobs[-1])
    return jobs


def _queue(client: DaemonClient, submission: Submission, key: str) -> Job:
    """Submit a job with an idempotency key. If the answer is lost, submit it again with the same
    key, so that the job is not queued twice.
    """
    try:
        return client.submit(submission.spec, idempotency_key=key, terms=submission.terms)
    except AnswerLost as lost:
        try:
            return client.submit(submission.spec, idempotency_key=key, terms=submission.terms)
        except DaemonUnreachable:
            raise lost from None  # the daemon may have queued the job before it ended


def _print_unqueued(
    submissions: Sequence[Submission], jobs: Sequence[Job], failed: int, *, lost: bool
) -> None:
    if len(submissions) == 1:
        if lost:
            print_message(
                "warning",
                f"{submissions[0].source} may be queued; see {command_name()} queue --all",
            )
        return
    done = [
        f"{each.source} (job {job['id']})" for each, job in zip(submissions, jobs, strict=False)
    ]
    parts = [f"queued: {', '.join(done) or 'none'}"]
    rest = [each.source for each in submissions[failed:]]
    if lost:
        parts.append(f"may be queued (see {command_name()} queue): {rest.pop(0)}")
    if rest:
        parts.append(f"not queued: {', '.join(rest)}")
    click.echo("; ".join(parts), err=True)


def dry_run_json(specs: Iterable[JobSpec]) -> dict[str, Any]:
    """Return the JSON of a dry run: the jobs that would be queued, with all keys. Secrets and
    values of `env` are hidden.
    """
    return {"dry_run": True, "jobs": [], "specs": [_shown(each) for each in specs]}


def _shown(spec: JobSpec) -> dict[str, Any]:
    tree: dict[str, Any] = mask_tree(job_to_dict(spec))
    if spec.notify.webhook is not None:
        tree["notify"] = {**tree["notify"], "webhook": masked_url(spec.notify.webhook)}
    return {**tree, "env": dict.fromkeys(spec.env, HIDDEN)}


def with_environment_options(
    jobs: Sequence[Submission], options: Sequence[str], machine: RemoteMachine | None
) -> list[Submission]:
    """Return the jobs with environment variables of this shell added: the usual variables, and the
    variables of --env.

    Notes on variables that were not passed are printed on stderr.
    """
    named_ones = named_variables(options, os.environ)
    captured = capture_environment(os.environ if machine is None else machine.environment)
    given = {*named_ones, *(name for each in jobs for name in each.spec.env)}
    if left := [name for name in captured.secret if name not in given]:
        print_message(
            "note",
            f"not passed to the job, because they look like secrets: {', '.join(left)}; pass "
            f"one with --env {left[0]}",
        )
    if captured.not_text:
        names = ", ".join(map(render.clean, captured.not_text))
        print_message(
            "note", f"not passed to the job, because their values are not text in UTF-8: {names}"
        )
    slurm_variables = {name: os.environ[name] for name in SLURM_VARIABLES if name in os.environ}
    return [
        replace(
            each,
            spec=with_environment(
                each.spec,
                captured.taken | (slurm_variables if each.spec.backend == SLURM else {}),
                named_ones,
            ),
        )
        for each in jobs
    ]


def on_node_rank(submission: Submission, node_rank: int) -> JobSpec:
    """Return the job with the node number `node_rank`.

    Raises:
        BadRequest: the job has fewer nodes.
    """
    spec = submission.spec
    nodes = spec.rendezvous.nodes
    if node_rank >= nodes:
        has = (
            "has no [rendezvous]; leave the option out, or set rendezvous.nodes"
            if nodes == 1
            else f"has the nodes 0 to {nodes - 1}; give one of these numbers"
        )
        raise BadRequest(f"{submission.source}: --node-rank {node_rank}: the job {has}")
    return with_key(spec, "rendezvous", node_rank=node_rank)


def with_webhook(spec: JobSpec, url: str) -> JobSpec:
    """Return the job with the webhook `url` for its notifications. Raises BadRequest if `url` is
    wrong.
    """
    if (why := wrong_url(url)) is not None:
        raise BadRequest(f"--notify {masked_url(url)}: {why}")
    return with_key(spec, "notify", webhook=url)


def submit_array(
    client: DaemonClient,
    submission: Submission,
    sweep: Mapping[str, list[Any]],
    count: int | None,
    key: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Queue all jobs of an array, or none of them, and report the array. With `dry_run` nothing is
    queued: this command checks the keys of all jobs, and the daemon checks the first job."""
    try:
        members = members_of(given_of(submission.spec), sweep, count)
        specs = [job_from_dict(each.tree, source=each.label or "job") for each in members]
        if dry_run:
            for note in client.check(specs[0], model=True, terms=submission.terms):
                print_message("note", note)
            jobs: list[dict[str, Any]] = []
        else:
            jobs = _queue_array(client, submission, sweep, count, key)
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
    click.echo(
        f"{len(jobs)} jobs are {how_it_waits(first)}, the first is {title(first)}: {plan(first)}"
    )
    click.echo(f"  see them        {command_name()} queue --all")
    click.echo(f"  stop them all   {command_name()} cancel @{number}")
    click.echo(f"  wait for them   {command_name()} wait @{number}")
    return 0


def _queue_array(
    client: DaemonClient,
    submission: Submission,
    sweep: Mapping[str, list[Any]],
    count: int | None,
    key: str | None,
) -> list[dict[str, Any]]:
    """Submit an array with an idempotency key. If the answer is lost, submit it again with the same
    key, so that the array is not queued twice.
    """
    key = key or uuid.uuid4().hex

    def ask() -> list[dict[str, Any]]:
        return client.submit_array(
            submission.spec, sweep, count, idempotency_key=key, terms=submission.terms
        )

    try:
        return ask()
    except AnswerLost:
        return ask()
