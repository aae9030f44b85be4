"""The kinds and recipients of the notices that are sent if a job changes. No I/O."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.text.secrets import mask_text
from zerotoolsd.attempts.job_environment import secrets_of, unshown_values
from zerotoolsd.config.config_tables import NotifyConfig
from zerotoolsd.queue.lifecycle import RELEASED_BY, JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.tables.notice_outbox import COMMAND, WEBHOOK, Notice

STALLED = "stalled"
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
        "retried": "is tried again",
        "stalled": "makes no progress",
        "preempted": "stopped for another job, and continues later",
        "held": "is held",
        "paused": "is held",
        "succeeded": "has succeeded",
        "failed": "has failed",
        "stopped": "was stopped at its time limit",
        "cancelled": "was cancelled",
    }
)


def notice_of(before: str, after: str, why: str | None = None) -> str | None:
    """Return the kind of notice for a change from the state `before` to `after`; None if no notice
    is sent.

    `why` is the reason in the old state.
    """
    if after == before:
        return None
    if after == states.RUNNING and before == states.LAUNCHING:
        return "started"
    if after == states.QUEUED and before in states.ACTIVE:
        return None if (why or "").startswith((RELEASED_BY, "unpaused by")) else "preempted"
    return _OF_STATE.get(after)


class JobNotices:
    """Makes the notices of job changes for the recipients that the job and the daemon's
    configuration name.
    """

    def __init__(self, config: NotifyConfig, host: str | None = None) -> None:
        self._config = config
        self._host = host or os.uname().nodename

    def of_change(
        self, job: JobRow, after: JobStatus, event: int, attempt: int | None, now: float
    ) -> Iterator[Notice]:
        """Yield the notices that report the change of `job` to `after`, one for each recipient.

        `event` is the number of the change in the queue's events.
        """
        notice = notice_of(job.state, after.state, job.standing.reason)
        if notice is None:
            return
        name = f"{event}"
        yield from self._notices(job, notice, name, after.state, after.reason, attempt, now)

    def of_stall(self, job: JobRow, attempt: int, why: str | None, now: float) -> Iterator[Notice]:
        """Yield the notices that report that the ranks of a running attempt make no progress."""
        name = f"{STALLED}-{attempt}"
        yield from self._notices(job, STALLED, name, job.state, why, attempt, now)

    def wants(self, job: JobRow, notice: str) -> bool:
        """Return whether any recipient gets this notice."""
        return any(True for _ in self._targets(job.reading.spec, notice))

    def _targets(self, spec: JobSpec | None, notice: str) -> Iterator[tuple[str, str]]:
        if self._config.webhook is not None and notice in self._config.on:
            yield WEBHOOK, self._config.webhook
        if spec is None or notice not in spec.notify.on:
            return
        if spec.notify.webhook not in (None, self._config.webhook):
            yield WEBHOOK, str(spec.notify.webhook)
        if spec.notify.command:
            yield COMMAND, json.dumps(spec.notify.command)

    def _notices(
        self,
        job: JobRow,
        notice: str,
        name: str,
        state: str,
        why: str | None,
        attempt: int | None,
        now: float,
    ) -> Iterator[Notice]:
        spec = job.reading.spec
        for channel, target in self._targets(spec, notice):
            # Numbers of jobs and events begin anew with another state directory, times do not.
            seed = f"{job.id}/{job.created!r}/{name}/{channel}/{target}"
            key = hashlib.sha256(seed.encode("utf-8", "surrogateescape")).hexdigest()[:32]
            reason = None if why is None else mask_text(why, unshown_values(spec))
            because = f": {reason}" if reason else ""
            title = mask_text(job.name, secrets_of(spec))
            tree = {
                "text": f"job {job.id} ({title}) on {self._host} {_WORDS[notice]}{because}",
                "id": key,
                "notice": notice,
                "time": now,
                "host": self._host,
                "job": {
                    "id": job.id,
                    "name": title,
                    "state": state,
                    "reason": reason,
                    "attempt": attempt,
                },
            }
            yield Notice(
                key=key,
                uid=job.uid,
                job_id=job.id,
                notice=notice,
                channel=channel,
                target=target,
                body=json.dumps(tree),
                created=now,
                next_at=now,
            )
