"""What is told of which change, and to whom."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.http.api.made_views import a_job
from zerotools.jobs.jobfile_tables.notify import NOTICES
from zerotools.jobs.states import STATES
from zerotoolsd.config.notify_config import DESTINATION_NOTICES, NoticeDestination, NotifyConfig
from zerotoolsd.monitoring.notifications.make_notices import JobNotices, notice_of
from zerotoolsd.queue.lifecycle import TRANSITIONS, JobStatus
from zerotoolsd.queue.rows import AttemptRow, JobRow
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
    return list(
        teller.of_change(job, JobStatus(state=after, reason=why), event=12, attempt=2, now=99.0)
    )


def test_every_notice_but_a_stall_is_that_of_a_transition() -> None:
    found = {notice_of(before, after) for (before, _), after in TRANSITIONS.items()}
    assert found - {None} == {*NOTICES} - {"stalled", "first_step"}


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


@pytest.mark.parametrize("url", [URL, "https://HOOKS.slack.com:443/x"])
def test_places_and_webhooks_of_one_address_get_a_notice_once(url: str) -> None:
    place = NoticeDestination(name="lab", url=url, on=("failed",))
    twice = NoticeDestination(name="again", url=URL)
    config: dict[str, Any] = {"places": (place, twice), "webhook": URL}
    job = a_row(webhook=URL, on=["failed", "started", "cancelled"])
    assert [each.target for each in told(job, "failed", **config)] == ["lab"]
    assert [each.target for each in told(job, "succeeded", **config)] == ["again"]
    only_mine = told(job, "cancelled", **config)
    assert [each.channel for each in only_mine] == ["webhook"], "the places do not want it"
    other = replace(place, url="https://hooks.slack.com/y")
    assert len(told(job, "failed", places=(other,), webhook=URL)) == 2


def test_a_stall_has_one_id_for_each_attempt() -> None:
    teller, job = JobNotices(NotifyConfig(), "box1"), a_row(webhook=URL)
    assert teller.wants(job, "stalled")
    assert not teller.wants(job, "started")
    stalls = [
        next(teller.of_stall(job, an_attempt(number=n), "rank 1 hangs", 1.0)) for n in (1, 1, 2)
    ]
    assert stalls[0].key == stalls[1].key != stalls[2].key
    assert "makes no progress: rank 1 hangs" in stalls[0].body


def an_attempt(**changes: Any) -> AttemptRow:
    usual: dict[str, Any] = {
        "job_id": 7,
        "number": 2,
        "token": "t",
        "state": "ended",
        "run_dir": "/gone",
        "gpu_uuids": ("GPU-1", "GPU-2"),
        "resumed_from": "/out/step-40",
        "started": 50.0,
        "ended": 90.0,
        "result": {
            "progress": {"event": "step", "step": 60, "steps": 100, "loss": 1.25},
            "checkpoint": {"step": 60, "path": "/out/step-60"},
        },
    }
    return AttemptRow(**{**usual, **changes})


def details(after: str, why: str | None = None, before: str = "running", **config: Any) -> Any:
    """The JSON of a notice of a job with an attempt that had done 60 steps."""
    job = replace(a_row(before, webhook=URL, on=list(NOTICES)), started=40.0)
    job.with_reading(a_row(webhook=URL, on=list(NOTICES)).spec)
    teller = JobNotices(NotifyConfig(**config), "box1")
    (notice,) = teller.of_change(
        job,
        JobStatus(state=after, reason=why),
        event=12,
        attempt=2,
        now=7300.0,
        newest=lambda job: an_attempt(),
    )
    return json.loads(notice.body)


def test_an_end_has_duration_loss_checkpoint_and_link() -> None:
    tree = details("succeeded", link="https://gpu.lab/zt/")
    assert tree["title"] == tree["text"] == "job 7 (tiny) on box1 has succeeded"
    assert tree["link"] == "https://gpu.lab/zt/#/jobs/7"
    assert tree["details"] == [
        "after 2 h 01 min",
        "step 60 of 100, loss 1.25",
        "checkpoint /out/step-60",
    ]


def test_a_failure_has_one_thing_to_try() -> None:
    logs = "zerotools logs 7 shows its output"
    tree = details("failed", "rank 0 exited with 1: KeyError: 'x' hunter2hunter2")
    assert tree["details"][0] == "rank 0 exited with 1: KeyError: 'x' ***"
    assert tree["details"][-1] == logs
    held = details("held", "the disk is full")
    assert held["details"][-1] == "zerotools explain 7 shows the cause"
    known = "rank 0 exited with 1: out of memory; try a smaller batch per GPU; no more restarts"
    tree = details("failed", known)
    assert tree["details"][0] == known
    assert logs not in tree["details"]


def test_a_start_has_its_gpus_and_its_checkpoint() -> None:
    tree = details("running", before="launching")
    assert tree["details"] == ["attempt 2 on 2 GPUs", "continues from /out/step-40"]
    assert details("waiting_retry", "rank 0 died")["details"] == ["rank 0 died"]


def test_a_first_step_has_the_time_from_the_start_to_it() -> None:
    job = a_row(webhook=URL, on=["first_step"])
    teller = JobNotices(NotifyConfig(), "box1")
    (notice,) = teller.of_first_step(job, an_attempt(), 62.0, 7300.0)
    assert json.loads(notice.body)["details"] == [
        "12 s after its start",
        "step 60 of 100, loss 1.25",
    ]


def test_each_place_gets_the_kinds_that_it_names() -> None:
    places = (
        NoticeDestination(name="all", url="https://ntfy.sh/a", on=DESTINATION_NOTICES),
        NoticeDestination(name="bad", to=("me@example.org",), on=("failed",)),
    )
    assert [each.target for each in told(a_row(), "failed", places=places)] == ["all", "bad"]
    assert [each.target for each in told(a_row(), "succeeded", places=places)] == ["all"]
    teller = JobNotices(NotifyConfig(places=places), "box1")
    (notice,) = teller.of_machine("disk_short", "/state has 1 GiB free", 1.0)
    assert (notice.channel, notice.target, notice.job_id) == ("place", "all", 0)
    text = "box1 has little disk space left: /state has 1 GiB free"
    assert json.loads(notice.body)["text"] == text
    assert "secret" not in notice.body


def example(kind: str) -> Any:
    return json.loads(JobNotices(NotifyConfig(), "box1").sample(kind, "a", 9000.0).body)


@pytest.mark.parametrize("base", ["https://gpu.lab/zt/", "https://gpu.lab/zt"])
def test_an_example_about_a_job_has_the_configured_link(base: str) -> None:
    """The job of an example does not exist, so its link leads to the list of jobs."""
    linked = JobNotices(NotifyConfig(link=base), "box1")
    trees = {
        kind: json.loads(linked.sample(kind, "a", 9000.0).body) for kind in DESTINATION_NOTICES
    }
    links = {kind: tree["link"] for kind, tree in trees.items() if "link" in tree}
    assert set(links.values()) == {"https://gpu.lab/zt/#/jobs"}
    assert set(DESTINATION_NOTICES) - set(links) == {"memory_short", "disk_short"}
    assert "link" not in example("failed")


def test_each_kind_of_notice_has_an_example_of_its_own() -> None:
    trees = [example(kind) for kind in DESTINATION_NOTICES]
    texts = {(tree["title"], *tree["details"]) for tree in trees}
    assert len(texts) == len(DESTINATION_NOTICES)
    assert all(tree["title"].startswith("test: ") for tree in trees)
    assert {tree["details"][-1] for tree in trees} == {
        "this is a test of zerotools notify, and nothing has happened"
    }


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("started", ["attempt 1 on 2 GPUs", "continues from /runs/example/step-200"]),
        ("first_step", ["100 s after its start", "step 1 of 1000, loss 10.42"]),
        (
            "succeeded",
            [
                "after 2 h 05 min",
                "step 1000 of 1000, loss 2.314",
                "checkpoint /runs/example/step-1000",
            ],
        ),
        (
            "stalled",
            [
                "the others wait for rank 1",
                "step 400 of 1000, loss 2.314",
                "checkpoint /runs/example/step-400",
                "zerotools explain 0 shows where the ranks are",
            ],
        ),
        (
            "memory_short",
            ["no job starts while the memory of the host runs out: 2.1 of 251.0 GiB free"],
        ),
    ],
)
def test_an_example_has_the_lines_of_a_real_notice(kind: str, lines: list[str]) -> None:
    assert example(kind)["details"][:-1] == lines
