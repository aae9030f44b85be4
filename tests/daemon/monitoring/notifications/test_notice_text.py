"""What is told of which change, and to whom."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.http.api.made_views import a_job
from zerotools.jobs.jobfile_tables.notify import NOTICES
from zerotools.jobs.states import STATES
from zerotoolsd.config.config_tables import NotifyConfig
from zerotoolsd.monitoring.notifications.notice_text import JobNotices, notice_of
from zerotoolsd.queue.lifecycle import TRANSITIONS, JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.tables.notice_outbox import Notice

URL = "https://hooks.slack.com/x"


def a_row(state: str = "running", **notify: Any) -> JobRow:
    spec = a_job(notify=notify, env={"API_TOKEN": "hunter2hunter2"})
    return JobRow(
        id=7,
        uid=1000,
        name="tiny",
        spec_text="{}",
        given_text=None,
        spec_version="0.1.0",
        output_dir="/out",
        standing=JobStatus(state=state),
        created=1.5,
        started=None,
        ended=None,
    ).with_reading(spec)


def told(job: JobRow, after: str, why: str | None = None, **config: Any) -> list[Notice]:
    teller = JobNotices(NotifyConfig(**config), "box1")
    return list(teller.of_change(job, JobStatus(state=after, reason=why), 12, 2, 99.0))


def test_every_notice_but_a_stall_is_that_of_a_transition() -> None:
    found = {notice_of(before, after) for (before, _), after in TRANSITIONS.items()}
    assert found - {None} == {*NOTICES} - {"stalled"}


@pytest.mark.parametrize("state", STATES)
def test_nobody_is_told_that_nothing_changed(state: str) -> None:
    assert notice_of(state, state) is None


def test_the_payload_is_slacks_and_has_no_secret() -> None:
    (notice,) = told(a_row(webhook=URL), "failed", "it said API_TOKEN=hunter2hunter2")
    assert (notice.uid, notice.channel, notice.target) == (1000, "webhook", URL)
    tree = json.loads(notice.body)
    assert tree["text"] == "job 7 (tiny) on box1 has failed: it said API_TOKEN=***"
    assert "hunter2" not in notice.body
    assert tree["id"] == notice.key
    assert tree["job"] == {
        "id": 7,
        "name": "tiny",
        "state": "failed",
        "reason": "it said API_TOKEN=***",
        "attempt": 2,
    }


def test_the_id_is_the_same_for_the_same_change_alone() -> None:
    job = a_row(webhook=URL, command=["tell"], on=list(NOTICES))
    keys = [each.key for each in told(job, "failed")]
    assert keys == [each.key for each in told(job, "failed")]
    elsewhere = told(replace(job, created=2.5).with_reading(job.spec), "failed")
    assert len({*keys, *(each.key for each in elsewhere)}) == 4


def test_what_a_job_does_not_ask_for_is_not_told() -> None:
    assert told(a_row(webhook=URL, on=["failed"]), "succeeded") == []
    assert told(a_row(), "failed") == []
    assert told(a_row("launching", webhook=URL), "running") == []


def test_the_administrator_is_told_of_all_jobs_and_each_address_once() -> None:
    admin = "https://admin.example/x"
    assert [each.target for each in told(a_row(), "failed", webhook=admin)] == [admin]
    both = told(a_row(webhook=URL), "failed", webhook=admin)
    assert [each.target for each in both] == [admin, URL]
    assert len(told(a_row(webhook=URL), "failed", webhook=URL)) == 1


def test_a_stall_is_told_once_for_each_attempt() -> None:
    teller, job = JobNotices(NotifyConfig(), "box1"), a_row(webhook=URL)
    assert teller.wants(job, "stalled")
    assert not teller.wants(job, "started")
    stalls = [next(iter(teller.of_stall(job, n, "rank 1 hangs", 1.0))) for n in (1, 1, 2)]
    assert stalls[0].key == stalls[1].key != stalls[2].key
    assert "makes no progress: rank 1 hangs" in stalls[0].body
