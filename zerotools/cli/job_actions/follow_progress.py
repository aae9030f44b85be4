"""Follows one job until it ends, and prints its progress."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from zerotools.cli.job_actions.wait_for_jobs import Poller, waits_for_user
from zerotools.cli.job_views.describe_job import (
    Job,
    checkpoint_path,
    exported_model,
    has_old_step,
    is_over,
    outcome,
    reason_text,
    state_words,
    title,
)
from zerotools.cli.job_views.progress_line import ProgressLine
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name
from zerotools.core.errors import EXIT_INTERRUPTED, JobFailed
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import HALTED, HELD, ON_HOLD, PAUSED, SUCCEEDED

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


class Follower:
    """Prints the states and the progress of one job on `stream`."""

    def __init__(
        self, client: DaemonClient | SlurmJobs, job: Job, stream: TextIO, poller: Poller
    ) -> None:
        self._client = client
        self._id: Any = job["id"]
        self.job = job
        """The job, as the daemon described it in its last answer."""
        self._poller = poller
        self._line = ProgressLine(stream)
        poller.print_line = self._line.print_line
        self._last_shown: tuple[object, ...] = ()
        self._attempt = 0
        self._offset = 0

    def run(self) -> Job:
        """Follow the job until it has ended or is held, and return it.

        Raises:
            JobFailed: the job did not succeed.
        """
        try:
            job = self._watch()
        finally:
            self._line.finish()
        if job["state"] != SUCCEEDED:
            raise JobFailed(f"{title(job)} {outcome(job)}; {_what_now(job)}")
        return job

    def _watch(self) -> Job:
        for _ in self._poller.rounds():
            job = self.job = self._poller.call(lambda: self._client.job(self._id))
            ends = is_over(job) or waits_for_user(job)
            if not ends:
                self._show_state(job)
                self._show_phase(job)
            if job["attempt"]:
                self._line.host_peak_bytes = job["attempt"]["peak_host_bytes"]
            self._show_attempts(job)
            if ends:
                return job
        raise AssertionError("rounds never end")

    def _show_state(self, job: Job) -> None:
        number = job["attempt"]["number"] if job["attempt"] else 0
        said = (job["state"], job["reason"], number)
        known, self._last_shown = self._last_shown, said
        if said == known or (not job["reason"] and (job["state"], number) == known[::2]):
            return
        text = f"{title(job)} {state_words(job)}"
        if job["state"] == "running" and number > 1:
            text += f", attempt {number}"
        if job["reason"]:
            text += f": {render.clean(job['reason'])}"
        self._line.print_line(text)

    def _show_phase(self, job: Job) -> None:
        """Show the activity of a job while it makes no steps. On a terminal this is shown at once,
        elsewhere periodically.
        """
        phase = job.get("phase") or {}
        if (
            phase.get("quiet")
            or has_old_step(job)
            or (phase.get("doing") and phase["doing"] == job["reason"])
        ):
            self._line.waits(f"{title(job)}: {render.clean(reason_text(job))}")

    def _show_attempts(self, job: Job) -> None:
        """Print the records that attempts have reported since the last call."""
        for attempt in job["attempts"]:
            if attempt["number"] > self._attempt:
                self._attempt, self._offset = attempt["number"], 0
            if attempt["number"] == self._attempt:
                self._show_progress()

    def _show_progress(self) -> None:
        while True:
            answer = self._poller.call(self._progress)
            for record in answer["records"]:
                self._line.show(record)
            if answer["next"] == self._offset:
                return
            self._offset = answer["next"]

    def _progress(self) -> Mapping[str, Any]:
        return self._client.progress(self._id, attempt=self._attempt, since=self._offset)


def _what_now(job: Job) -> str:
    if job["state"] == HALTED:
        return f"continue from its newest checkpoint: {command_name()} retry {job['id']}"
    if job["state"] in (ON_HOLD, PAUSED):
        return f"let it start: {command_name()} release {job['id']}"
    if job["state"] == HELD:
        return (
            f"let it continue: {command_name()} release {job['id']}, or end it: "
            f"{command_name()} cancel {job['id']}"
        )
    return f"its log: {command_name()} logs {job['id']}"


def follow_submitted(
    client: DaemonClient | SlurmJobs, job: Job, poller: Poller, *, as_json: bool
) -> int:
    """Follow the job until it has ended, and return the exit status. Ctrl-C leaves the job running.

    Progress is printed on stdout. With `as_json`, progress is printed on stderr, and the job is
    printed on stdout as JSON, also after an error.

    Raises:
        JobFailed: the job did not succeed.
    """
    follower = Follower(client, job, sys.stderr if as_json else sys.stdout, poller)
    try:
        ended = follower.run()
    except KeyboardInterrupt:
        click.echo(
            f"\n{title(job)} continues in the background; read its log: {command_name()} logs -f "
            f"{job['id']}, stop it: {command_name()} cancel {job['id']}",
            err=True,
        )
        return EXIT_INTERRUPTED
    finally:
        if as_json:
            render.print_json({"dry_run": False, "jobs": [follower.job]})
    if as_json:
        return 0
    click.echo(f"{title(ended)} {outcome(ended)}")
    if path := checkpoint_path(ended):
        click.echo(f"  contents      zerotools inspect {shlex.quote(str(path))}")
    if model := exported_model(ended):
        click.echo(f"  the model    {model}")
    return 0
