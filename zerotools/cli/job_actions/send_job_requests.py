"""Sends one request for each of several jobs, and runs finished or held jobs again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerotools.cli.job_actions.job_reference import array_member, find_job, jobs_client
from zerotools.cli.job_views.describe_job import Job, state_words, title
from zerotools.cli.output import render
from zerotools.cli.output.report_failure import report_error
from zerotools.core.errors import BadRequest, DaemonRefused, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import SUCCEEDED

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


def request_each(
    client: DaemonClient | SlurmJobs,
    references: Sequence[str],
    ask: Callable[[Any], dict[str, Any]],
    sentence: Callable[[Job], str] | None,
    of_array: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[ZerotoolsError]]:
    """Call `ask` with the number of each job, in order. Return the changed jobs, and the errors of
    refused jobs.

    For each changed job, the text that `sentence` returns is printed (None: nothing is printed). An
    array (`@7`) is changed by one request with the body `of_array`. If one job is refused, the
    other jobs are still changed, also within an array.
    """
    jobs: list[dict[str, Any]] = []
    errors: list[ZerotoolsError] = []
    for reference in dict.fromkeys(references):
        try:
            found = _change_each(client, reference, ask, of_array, errors)
        except ZerotoolsError as error:  # the other jobs are still asked
            errors.append(error)
            continue
        jobs += found
        if sentence is not None:
            for job in found:
                click.echo(sentence(job))
    return jobs, errors


def _change_each(
    client: DaemonClient | SlurmJobs,
    reference: str,
    ask: Callable[[Any], dict[str, Any]],
    of_array: Mapping[str, Any],
    errors: list[ZerotoolsError],
) -> list[dict[str, Any]]:
    if not reference.startswith("@") or not isinstance(client, DaemonClient):
        return [ask(find_job(client, reference)["id"])]
    answer = client.of_array(array_member(client, reference), of_array)
    errors += [DaemonRefused(kept["why"], status=409, code="conflict") for kept in answer["kept"]]
    return list(answer["jobs"])


def print_changed(jobs: Sequence[Job], errors: Sequence[ZerotoolsError], *, as_json: bool) -> None:
    """If `as_json`, print the jobs as JSON. Report all errors except the last error, which is
    raised.
    """
    if as_json:
        render.print_json({"jobs": list(jobs)})
    sys.stdout.flush()
    for refusal in errors[:-1]:
        report_error(refusal)
    if errors:
        raise errors[-1]


def release_sentence(job: Job) -> str:
    """Return the sentence that is printed for a job after its release."""
    why = f": {render.clean(job['reason'])}" if job["reason"] else ""
    return f"{title(job)} is not held any more: it is {state_words(job)}{why}"


def continue_job(
    socket: Path | None, reference: str | None, *, asked: Mapping[str, Any], as_json: bool
) -> None:
    """Queue a new job that continues from the newest checkpoint of a finished job.

    `asked` has the number of nodes that the user requested. A number is possible only for jobs that
    were submitted to Slurm without a daemon.
    """
    client = jobs_client(socket, [reference])
    before = find_job(client, reference)
    if not isinstance(client, DaemonClient):
        job = client.resume(before["id"], **asked)
        if as_json:
            render.print_json({"jobs": [job]})
        else:
            click.echo(f"{title(job)} is {state_words(job)}; it continues in {job['output_dir']}")
        return
    refuse_nodes(asked)
    job = client.retry(int(before["id"]), from_start=False)
    if as_json:
        render.print_json({"jobs": [job]})
        return
    _print_continued(job, before)


def refuse_nodes(asked: Mapping[str, Any]) -> None:
    """Raise BadRequest if the user gave a number of nodes for a job of the daemon."""
    if asked:
        raise BadRequest(
            "--nodes is only for jobs submitted to Slurm without a daemon; leave --nodes out"
        )


def restart_words(job: Job) -> str:
    """Return words about the start of a job that was queued again: `resumes from the newest
    checkpoint` or `begins`.
    """
    return "resumes from the newest checkpoint" if job["spec"].get("resume_from") else "begins"


def _print_continued(job: Job, before: Job) -> None:
    click.echo(f"{title(job)} is queued; it {restart_words(job)} in {job['output_dir']}")
    if before["state"] == SUCCEEDED:
        click.echo(f"note: job {before['id']} had already succeeded; its program runs again")
