"""The same request for several jobs: the refusal of one does not prevent the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from zerotools.cli.job_views.describe import Job
from zerotools.cli.job_views.job_reference import find_job, member_of
from zerotools.cli.output import render
from zerotools.cli.output.failure import report_error
from zerotools.core.errors import DaemonRefused, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


def ask_each(
    client: DaemonClient | SlurmJobs,
    references: Sequence[str],
    ask: Callable[[Any], dict[str, Any]],
    told: Callable[[Job], str] | None,
    of_array: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[ZerotoolsError]]:
    """Call `ask` for each job once, in order, and print the text of `told` for it (None: nothing).
    Return the changed jobs, and the refusals. An array (`@7`) is one request with the body
    `of_array`. The refusal of one of its jobs does not prevent the others either."""
    jobs: list[dict[str, Any]] = []
    errors: list[ZerotoolsError] = []
    for reference in dict.fromkeys(references):
        try:
            found = _asked(client, reference, ask, of_array, errors)
        except ZerotoolsError as error:  # the other jobs are still asked
            errors.append(error)
            continue
        jobs += found
        if told is not None:
            for job in found:
                click.echo(told(job))
    return jobs, errors


def _asked(
    client: DaemonClient | SlurmJobs,
    reference: str,
    ask: Callable[[Any], dict[str, Any]],
    of_array: Mapping[str, Any],
    errors: list[ZerotoolsError],
) -> list[dict[str, Any]]:
    if not reference.startswith("@") or not isinstance(client, DaemonClient):
        return [ask(find_job(client, reference)["id"])]
    answer = client.of_array(member_of(client, reference), of_array)
    errors += [DaemonRefused(kept["why"], status=409, code="conflict") for kept in answer["kept"]]
    return list(answer["jobs"])


def finish(jobs: Sequence[Job], errors: Sequence[ZerotoolsError], *, as_json: bool) -> None:
    """Print the jobs as JSON on request; report all refusals but the last, and raise that."""
    if as_json:
        render.print_json({"jobs": list(jobs)})
    sys.stdout.flush()
    for refusal in errors[:-1]:
        report_error(refusal)
    if errors:
        raise errors[-1]
