"""Makes the notices that report a change of a job or of the machine: their kinds, texts and
recipients.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.text.mask_secrets import mask_text
from zerotoolsd.attempts.job_environment import secrets_of, unshown_values
from zerotoolsd.attempts.last_report import last_report
from zerotoolsd.config.notify_config import DISK_SHORT, MEMORY_SHORT, NotifyConfig
from zerotoolsd.monitoring.notifications.webhooks import host_of
from zerotoolsd.queue.lifecycle import RELEASED_BY, JobStatus
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.queue.tables.notice_outbox import COMMAND, DESTINATION, WEBHOOK, Notice
from zerotoolsd.supervisor.heartbeats.stall_detector import format_duration

STALLED, FIRST_STEP = "stalled", "first_step"
MACHINE_JOB = 0
"""The number that notices of the machine have instead of the number of a job."""
_OF_STATE: Mapping[str, str] = MappingProxyType(
    {
        states.SUCCEEDED: "succeeded",
        states.FAILED: "failed",
        states.CANCELLED: "cancelled",
        states.HALTED: "stopped",
        states.HELD: "held",
        states.PAUSED: "paused",
        states.WAITING_RETRY: "retried",
    }
)
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "started": "has started",
        FIRST_STEP: "has done its first step",
        "retried": "is tried again",
        STALLED: "makes no progress",
        "preempted": "stopped for another job, and continues later",
        "held": "is held",
        "paused": "is held",
        "succeeded": "has succeeded",
        "failed": "has failed",
        "stopped": "was stopped at its time limit",
        "cancelled": "was cancelled",
        MEMORY_SHORT: "has little memory left",
        DISK_SHORT: "has little disk space left",
    }
)
_ADVICE = ("; try ", "; set ")
"""Beginnings of the advice that the reason of a job may contain."""
_NEXT_COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"failed": ("logs", "its output"), "held": ("explain", "the cause")}
)
"""The command that helps after a notice without advice, and what the command shows."""
_LONGEST_REASON = 2000


def notice_of(before: str, after: str, why: str | None = None) -> str | None:
    """Return the kind of notice for a change from the state `before` to `after`; None if no notice
    is sent.

    `why` is the job's reason in the state `before`.
    """
    if after == before:
        return None
    if after == states.RUNNING and before == states.LAUNCHING:
        return "started"
    if after == states.QUEUED and before in states.ACTIVE:
        return None if (why or "").startswith((RELEASED_BY, "unpaused by")) else "preempted"
    return _OF_STATE.get(after)


def condition_of(notice: str, attempt: AttemptRow) -> str:
    """Return the key by which the outbox remembers that this notice of an attempt was sent."""
    return f"{notice}-{attempt.number}"


NewestAttempt = Callable[[JobRow], AttemptRow | None]
"""A function that returns the newest attempt of a job; None if it has none."""


class JobNotices:
    """Makes the notices of job changes for the recipients in the job and the configuration."""

    def __init__(self, config: NotifyConfig, host: str | None = None) -> None:
        self._config = config
        self._host = host or os.uname().nodename

    def of_change(
        self,
        job: JobRow,
        after: JobStatus,
        *,
        event: int,
        attempt: int | None,
        now: float,
        newest: NewestAttempt = lambda job: None,
    ) -> Iterator[Notice]:
        """Yield the notices that report the change of `job` to `after`, one for each recipient.

        `event` is the number of the change in the queue's events. `newest` returns the newest
        attempt of the job after the change.
        """
        notice = notice_of(job.state, after.state, job.standing.reason)
        if notice is None or not self.wants(job, notice):
            return
        facts = _JobFacts(job, after.state, after.reason, attempt, newest(job))
        yield from self._notices(facts, notice, f"{event}", now)

    def of_first_step(
        self, job: JobRow, attempt: AttemptRow, when: float, now: float
    ) -> Iterator[Notice]:
        """Yield the notices that report the first step of an attempt, which was done at the time
        `when` (seconds since the epoch).
        """
        facts = _JobFacts(job, job.state, None, attempt.number, attempt, first_step=when)
        yield from self._notices(facts, FIRST_STEP, condition_of(FIRST_STEP, attempt), now)

    def of_stall(
        self, job: JobRow, attempt: AttemptRow, why: str | None, now: float
    ) -> Iterator[Notice]:
        """Yield the notices that report that a running attempt makes no progress."""
        facts = _JobFacts(job, job.state, why, attempt.number, attempt)
        yield from self._notices(facts, STALLED, condition_of(STALLED, attempt), now)

    def of_machine(self, notice: str, why: str, now: float) -> Iterator[Notice]:
        """Yield the notices that report that memory or disk space of the machine is short."""
        title = f"{self._host} {_WORDS[notice]}"
        for channel, target in self._targets(None, notice):
            key = _key(MACHINE_JOB, now, notice, channel, target)
            tree = self._body(notice, title, why, [], key, now)
            yield _notice(key, os.geteuid(), MACHINE_JOB, channel, target, tree)

    def sample(self, notice: str, destination: str, now: float) -> Notice:
        """Return an example of a notice for the destination with this name. It has the lines of a
        real notice, about a job that does not exist. Its link leads to the list of all jobs.
        """
        why, details = REASONS.get(notice), list[str]()
        who, link = self._host, None
        if notice not in (MEMORY_SHORT, DISK_SHORT):
            state = next((each for each, name in _OF_STATE.items() if name == notice), "running")
            job, attempt = example_job(notice, state, now)
            first = (attempt.started or now) + 100 if notice == FIRST_STEP else None
            facts = _JobFacts(job, state, why, attempt.number, attempt, first_step=first)
            details = list(facts.lines(notice, now))
            who, link = f"job {job.id} ({job.name}) on {self._host}", self._link()
        details.append("this is a test of zerotools notify, and nothing has happened")
        key = _key(MACHINE_JOB, now, notice, DESTINATION, destination)
        tree = self._body(notice, f"test: {who} {_WORDS[notice]}", why, details, key, now)
        tree |= {} if link is None else {"link": link}
        return _notice(key, os.geteuid(), MACHINE_JOB, DESTINATION, destination, tree)

    def wants(self, job: JobRow | None, notice: str) -> bool:
        """Return whether anybody gets this notice of `job` (None: a notice about the machine)."""
        spec = None if job is None else job.reading.spec
        return any(True for _ in self._targets(spec, notice))

    def _targets(self, spec: JobSpec | None, notice: str) -> Iterator[tuple[str, str]]:
        """Yield (channel, target) of each recipient.

        Each address gets the notice only once. If a job names the address of a configured
        destination, the notice is sent through the destination, because only destinations can sign
        messages.
        """
        places = [destination for destination in self._config.places if notice in destination.on]
        addresses = set[object]()
        for destination in places:
            if destination.url is None or _add_address(destination.url, addresses):
                yield DESTINATION, destination.name
        ours = self._config.webhook if notice in self._config.on else None
        if ours is not None and _add_address(ours, addresses):
            yield WEBHOOK, ours
        if spec is None or notice not in spec.notify.on:
            return
        if spec.notify.webhook is not None and _add_address(spec.notify.webhook, addresses):
            yield WEBHOOK, spec.notify.webhook
        if spec.notify.command:
            yield COMMAND, json.dumps(spec.notify.command)

    def _notices(self, facts: _JobFacts, notice: str, name: str, now: float) -> Iterator[Notice]:
        job = facts.row
        spec = job.reading.spec
        hidden = unshown_values(spec)
        reason = None if facts.reason is None else mask_text(facts.reason, hidden)
        name_shown = mask_text(job.name, secrets_of(spec))
        details = [mask_text(one_line(line), hidden) for line in facts.lines(notice, now)]
        title = f"job {job.id} ({name_shown}) on {self._host} {_WORDS[notice]}"
        for channel, target in self._targets(spec, notice):
            # With another state directory, the numbers of jobs and events begin again; times do
            # not.
            key = _key(job.id, job.created, name, channel, target)
            tree = self._body(notice, title, reason, details, key, now)
            tree["job"] = {
                "id": job.id,
                "name": name_shown,
                "state": facts.state,
                "reason": reason,
                "attempt": facts.attempt,
            }
            if (link := self._link()) is not None:
                tree["link"] = f"{link}/{job.id}"
            yield _notice(key, job.uid, job.id, channel, target, tree)

    def _link(self) -> str | None:
        """Return the address of the page's list of jobs; None if no address is configured."""
        base = self._config.link
        return None if base is None else f"{base.rstrip('/')}/#/jobs"

    def _body(
        self, notice: str, title: str, why: str | None, details: list[str], key: str, now: float
    ) -> dict[str, Any]:
        because = f": {why}" if why else ""
        lines = [one_line(why)[:_LONGEST_REASON], *details] if why else details
        return {
            "text": f"{title}{because}",
            "title": title,
            "details": lines,
            "id": key,
            "notice": notice,
            "time": now,
            "host": self._host,
        }


@dataclass(frozen=True)
class _JobFacts:
    """The facts for a notice: a job, its state after a change, the reason of the change, the number
    of the attempt that the change concerns, and the newest attempt.

    `first_step` is the time of the attempt's first step, in seconds since the epoch; it is set only
    for the notice of the first step.
    """

    row: JobRow
    state: str
    reason: str | None
    attempt: int | None
    newest: AttemptRow | None
    first_step: float | None = None

    def lines(self, notice: str, now: float) -> Iterator[str]:
        """Yield lines about the progress of the job, and the commands that help."""
        if self.newest is not None and notice != "retried":
            yield from self._progress(notice, self.newest, now)
        if notice in _NEXT_COMMANDS and not any(w in (self.reason or "") for w in _ADVICE):
            command, what = _NEXT_COMMANDS[notice]
            yield f"zerotools {command} {self.row.id} shows {what}"
        elif notice == STALLED:
            yield f"zerotools explain {self.row.id} shows where the ranks are"
        elif notice == "stopped":
            yield f"zerotools retry {self.row.id} continues it"

    def _progress(self, notice: str, newest: AttemptRow, now: float) -> Iterator[str]:
        if notice == "started":
            where = count_text(len(newest.gpu_uuids), "GPU") if newest.gpu_uuids else "the CPU"
            yield f"attempt {newest.number} on {where}"
            if newest.resumed_from is not None:
                yield f"continues from {newest.resumed_from}"
            return
        if self.state in states.TERMINAL and self.row.started is not None:
            yield f"after {format_duration(max(0.0, now - self.row.started))}"
        elif self.first_step is not None and newest.started is not None:
            yield f"{format_duration(max(0.0, self.first_step - newest.started))} after its start"
        report = last_report(newest)
        if line := _step_line(report.step or {}):
            yield line
        if notice != FIRST_STEP and report.checkpoint_path is not None:
            yield f"checkpoint {report.checkpoint_path}"


def _step_line(step: Mapping[str, Any]) -> str:
    """Return the number and the loss of the last step that was reported; empty if unknown."""
    number, steps, loss = (step.get(name) for name in ("step", "steps", "loss"))
    if type(number) is not int:
        return ""
    of_steps = f" of {steps}" if type(steps) is int else ""
    shown = f", loss {loss:.4g}" if isinstance(loss, float) else ""
    return f"step {number}{of_steps}{shown}"


def _add_address(url: str, addresses: set[object]) -> bool:
    """Add the address `url` to `addresses`. Return False if the same address was already there,
    even if it was written differently.
    """
    parts = urlsplit(url)
    address = (*host_of(url), parts.path or "/", parts.query)
    is_new = address not in addresses
    addresses.add(address)
    return is_new


def _key(job_id: int, created: float, name: str, channel: str, target: str) -> str:
    seed = f"{job_id}/{created!r}/{name}/{channel}/{target}"
    return hashlib.sha256(seed.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _notice(
    key: str, uid: int, job_id: int, channel: str, target: str, tree: Mapping[str, Any]
) -> Notice:
    return Notice(
        key=key,
        uid=uid,
        job_id=job_id,
        notice=tree["notice"],
        channel=channel,
        target=target,
        body=json.dumps(tree),
        created=tree["time"],
        next_at=tree["time"],
    )


REASONS: Mapping[str, str] = MappingProxyType(
    {
        "failed": "rank 0 exited with 1: torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB; try a smaller batch per GPU with more accumulation steps, or shorter "
        "sequences; max_restarts = 3 allows no more restarts",
        "retried": "rank 1 was ended by signal 9 (SIGKILL); restart 1 of 3 in 10 s",
        "stopped": "its time limit of 2 h is over; saved at step 400 and stopped",
        "stalled": "the others wait for rank 1",
        "preempted": "stops for job 9 of priority 5; saved at step 400 and stopped, 0 steps lost",
        "held": "its output directory cannot be written: No space left on device",
        "paused": "held by anna",
        "cancelled": "cancelled by anna",
        MEMORY_SHORT: "no job starts while the memory of the host runs out: 2.1 of 251.0 GiB free",
        DISK_SHORT: "/var/lib/zerotools has 3.2 GiB free, less than 10 GiB (notify.disk_free); "
        "zerotools clean frees space",
    }
)
"""The reason in the example of each kind of notice; kinds without a reason are left out."""
_ID, _STEPS = 0, 1000
_SECONDS = 7500.0
"""Its duration."""


def example_job(notice: str, state: str, now: float) -> tuple[JobRow, AttemptRow]:
    """Return the job of the example of a notice, and its newest attempt. The job began
    `_SECONDS` seconds before `now`, which is in seconds since the epoch.
    """
    begin, directory = now - _SECONDS, "/runs/example"
    step = {"first_step": 1, "succeeded": _STEPS}.get(notice, 400)
    progress = {"step": step, "steps": _STEPS, "loss": 10.42 if step == 1 else 2.314}
    job = JobRow(
        id=_ID,
        uid=0,
        name="example",
        spec_text="{}",
        given_text=None,
        spec_version="",
        output_dir=directory,
        standing=JobStatus(state=state),
        created=begin,
        started=None if state == states.QUEUED else begin,
        ended=None,
    )
    attempt = AttemptRow(
        job_id=_ID,
        number=1,
        token="",
        state=ENDED,
        run_dir="",
        gpu_uuids=("GPU-0", "GPU-1"),
        resumed_from=f"{directory}/step-200",
        started=begin,
        ended=now,
        result={
            "progress": progress,
            "checkpoint": {"step": step, "path": f"{directory}/step-{step}"},
        },
    )
    return job, attempt
