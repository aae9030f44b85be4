"""Submits jobs to Slurm without a daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import click

from zerotools.cli.job_actions.daemon_submission import dry_run_json
from zerotools.cli.job_actions.follow_progress import follow_submitted
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.cli.job_views.describe_job import Job, plan, title
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name, print_message
from zerotools.core.errors import (
    BadRequest,
    SlurmUnreachable,
    Unsupported,
    ZerotoolsError,
)
from zerotools.jobs import states
from zerotools.jobs.client.daemon_address import RemoteMachine
from zerotools.jobs.client.submission_conflicts import Submission, submission_conflicts, with_source
from zerotools.jobs.job_arrays import members_of
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.spec import SLURM
from zerotools.jobs.slurm.job_directory import JobDirectory, keyed_name, slurm_home
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.slurm_jobs import PREFIX, SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import script_of, submit_job


def submit_to_slurm(
    submissions: Sequence[Submission],
    terms_of: Callable[[Callable[[str], Sequence[int]]], Mapping[str, Any]],
    machine: RemoteMachine | None,
    *,
    key: str | None,
    dry_run: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Submit the jobs with sbatch, report each, and return the exit status.

    All jobs are checked before the first is submitted.
    """
    if machine is not None:
        raise BadRequest(f"--host: log in to {machine.host} to submit to its Slurm")
    _refuse_mixed(submissions)
    commands = SlurmCommands()
    jobs = SlurmJobs(commands)
    terms = terms_of(lambda word: [_number(jobs, word)])
    options = _options(terms, commands, jobs)
    if refusals := list(submission_conflicts(submissions)):
        raise refusals[0]
    keys = [
        key if key is None or len(submissions) == 1 else f"{key}-{place}"
        for place in range(len(submissions))
    ]
    for each, own_key in zip(submissions, keys, strict=True):
        try:
            jobs.check_output_dir_free(
                each.spec, own=None if own_key is None else keyed_name(own_key)
            )
        except BadRequest as error:
            raise with_source(each.source, error) from None
        _check_here(each)
    if dry_run:
        return _show(commands, submissions, options, as_json=as_json)
    queued: list[Job] = []
    for each, own_key in zip(submissions, keys, strict=True):
        try:
            claim = partial(jobs.claim_output, each.spec)
            directory, number = submit_job(
                commands, slurm_home(), each.spec, key=own_key, options=options, claim=claim
            )
        except ZerotoolsError as error:
            _print_unqueued(submissions, queued)
            if as_json:
                render.print_json({"dry_run": False, "jobs": queued})
            raise with_source(each.source, error) from error
        queued.append(_report_queued(jobs, directory, number, as_json=as_json))
    if follow:
        return follow_submitted(jobs, queued[0], Poller(interval_seconds=2.0), as_json=as_json)
    if as_json:
        render.print_json({"dry_run": False, "jobs": queued})
        return 0
    number = queued[-1]["id"]
    click.echo(
        f"  see the queue  {command_name()} queue\n"
        f"  read its log   {command_name()} logs -f {number}"
    )
    click.echo(f"  stop it        {command_name()} cancel {number}")
    return 0


def _check_here(submission: Submission) -> None:
    """Check the job on this machine, in a separate process, as the daemon would check it.

    Raises:
        BadRequest: a check failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "zerotoolsd.slurm.check_submission"],
        input=json.dumps(job_to_dict(submission.spec)),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise BadRequest(f"{submission.source}: {said[-2000:]}")


def members_for_slurm(
    submission: Submission, sweep: Mapping[str, list[Any]], count: int | None
) -> list[Submission]:
    """Return the members of an array as separate jobs. Raises BadRequest if the array is wrong."""
    found = members_of(given_of(submission.spec), sweep, count)
    return [
        replace(
            submission,
            source=each.label or f"{submission.source}[{number}]",
            spec=job_from_dict(each.tree, source=each.label or "job"),
        )
        for number, each in enumerate(found)
    ]


def _refuse_mixed(submissions: Sequence[Submission]) -> None:
    """Raise BadRequest if only some of the jobs are for Slurm."""
    chosen = [each for each in submissions if each.spec.backend == SLURM]
    if chosen and len(chosen) < len(submissions):
        other = next(each for each in submissions if each.spec.backend != SLURM)
        raise BadRequest(
            f'{chosen[0].source} has backend = "slurm", but {other.source} does not; submit them '
            "with two commands"
        )


def _options(terms: Mapping[str, Any], commands: SlurmCommands, jobs: SlurmJobs) -> list[str]:
    """Return the options of sbatch for the conditions `terms`, which must be met before the jobs
    start.

    Raises:
        BadRequest: Slurm has no such condition.
    """
    for name in ("priority", "hold"):
        if terms.get(name):
            raise BadRequest(
                f"--{name} is for the queue of a daemon; use Slurm's options: --sbatch --nice=100 "
                "puts a job behind others, and scontrol hold holds a job"
            )
    found = []
    if "begin" in terms:
        when = datetime.fromtimestamp(terms["begin"])
        found.append(f"--begin={when.isoformat(timespec='seconds')}")
    kinds = {"ok": "afterok", "any": "afterany"}
    parts = [
        f"{kinds[each['condition']]}:{each['job']}"
        for each in terms.get("after", ())
        if _must_wait_for(commands, jobs, str(each["job"]), each["condition"])
    ]
    if parts:
        found.append(f"--dependency={','.join(parts)}")
    return found


def _number(jobs: SlurmJobs, word: str) -> int:
    """Return Slurm's number of the job `word`.

    For a job of zerotools, this is the number of its newest submission. For any other job of Slurm,
    `word` must be the number.
    """
    plain = word.removeprefix(PREFIX)
    try:
        found = jobs.find(word)["slurm"]["id"]
    except BadRequest:
        if not plain.isdecimal():
            raise
        return int(plain)
    if found is None:
        raise BadRequest(f"--after {word}: Slurm has not given this job a number yet; try later")
    return int(found)


def _must_wait_for(commands: SlurmCommands, jobs: SlurmJobs, number: str, condition: str) -> bool:
    """Return whether the job `number` has not ended yet, so that another job must wait for it.

    A finished job is not passed to Slurm: Slurm forgets jobs some minutes after their end, and does
    not wait for a forgotten job, even if that job failed.

    Raises:
        BadRequest: the condition can never be met.
    """
    try:
        view = jobs.job(number)
    except BadRequest:  # not a job of zerotools
        if commands.jobs([number]):
            return True
        if condition == "ok":
            raise BadRequest(
                f"--after {number}: Slurm has no job with this number, or has already forgotten "
                "it; if the job has succeeded, leave --after out"
            ) from None
        return False
    if view["state"] not in states.TERMINAL:
        return True
    if condition == "ok" and view["state"] != states.SUCCEEDED:
        raise BadRequest(
            f"--after {view['id']}: waits for success, but job {view['id']} is "
            f"{states.display_text(view['state'])}; retry that job first, or give "
            f"--after {view['id']}:any"
        )
    return False


def _show(
    commands: SlurmCommands,
    submissions: Sequence[Submission],
    options: Sequence[str],
    *,
    as_json: bool,
) -> int:
    scripts = []
    for each in submissions:
        place = slurm_home() / "JOB"
        text = script_of(each.spec, place, 1, "TOKEN", commands.environment)
        if not as_json:
            click.echo(f"{each.source}: sbatch {' '.join([*options, 'SCRIPT'])}, with the script")
            render.print_lines(map(render.clean, text.splitlines()))
        said = _slurm_dry_run(commands, each, text)
        scripts.append(
            {"source": each.source, "options": [*options], "script": text, "slurm_says": said}
        )
        if said is not None and not as_json:
            click.echo(said)
    if as_json:
        specs = dry_run_json([each.spec for each in submissions])
        render.print_json({**specs, "scripts": scripts})
    return 0


def _slurm_dry_run(commands: SlurmCommands, submission: Submission, text: str) -> str | None:
    """Return the output of `sbatch --test-only`, or None if Slurm cannot be reached.

    Raises BadRequest or Unsupported if Slurm refuses the script.
    """
    try:
        commands.path_of("sbatch")
    except Unsupported as error:
        print_message("warning", f"Slurm did not check the script: {error}")
        return None
    try:
        commands.version()
        return commands.test_only(text)
    except SlurmUnreachable as error:
        print_message("warning", f"Slurm did not check the script: {error}")
        return None
    except (BadRequest, Unsupported) as error:
        raise with_source(submission.source, error) from None


def _report_queued(
    jobs: SlurmJobs, directory: JobDirectory, number: str | None, *, as_json: bool
) -> dict[str, Any]:
    job = jobs.job(directory.path.name if number is None else number)
    if number is None:
        print_message(
            "warning",
            f"{title(job)}: Slurm's controller did not answer, so it is not known whether the job "
            f"is queued; when the controller answers again, {command_name()} queue shows the "
            "state of the job, which is never queued twice",
        )
    elif not as_json:
        click.echo(f"{title(job)} is {states.display_text(job['state'])}: {plan(job)}")
    return job


def _print_unqueued(submissions: Sequence[Submission], queued: Sequence[Job]) -> None:
    if len(submissions) == 1:
        return
    done = ", ".join(
        f"{each.source} ({job['id']})" for each, job in zip(submissions, queued, strict=False)
    )
    rest = ", ".join(each.source for each in submissions[len(queued) :])
    click.echo(f"queued: {done or 'none'}; not queued: {rest}", err=True)
