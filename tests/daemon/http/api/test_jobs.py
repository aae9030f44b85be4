from __future__ import annotations

import json
import os

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB, a_job, an_attempt
from zerotools.core.errors import BadRequest, DaemonRefused, Unsupported
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.interface.api_types import Unavailable


def test_submit_is_by_the_uid_of_the_socket(service: FakeService, client: DaemonClient) -> None:
    job = client.submit(a_job())
    assert (job["id"], job["state"], job["world_size"]) == (1, "queued", 2)
    assert service.uids == [os.geteuid()]


def test_the_same_key_queues_once(service: FakeService, client: DaemonClient) -> None:
    first = client.submit(a_job(), idempotency_key="k")
    assert client.submit(a_job(), idempotency_key="k") == first
    assert len(service.views) == 1


def test_no_environment_value_leaves_the_daemon(client: DaemonClient) -> None:
    answers = [client.submit(a_job()), client.jobs(), client.job(1), client.cancel(1)]
    assert "hunter2" not in json.dumps(answers)
    assert client.job(1)["spec"]["env"] == {"TOKEN": "***"}


def test_jobs_are_listed_newest_first_in_pages(service: FakeService, client: DaemonClient) -> None:
    for _ in range(3):
        service.add()
    service.change(2, state="running")
    assert [job["id"] for job in client.jobs()] == [3, 2, 1]
    assert [job["id"] for job in client.jobs(limit=1, after=3)] == [2]
    assert [job["id"] for job in client.jobs(state="running")] == [2]


def test_jobs_are_listed_by_priority_in_pages(service: FakeService, client: DaemonClient) -> None:
    for priority in (0, 5, 0, 5):
        service.add(priority=priority)
    assert [job["id"] for job in client.jobs(by_priority=True)] == [2, 4, 1, 3]
    assert [job["id"] for job in client.jobs(by_priority=True, limit=2, after=4)] == [1, 3]
    with pytest.raises(BadRequest, match=r"order='age': must be one of newest, priority"):
        client._object("GET", "/v1/jobs", {"order": "age"})


def test_a_page_of_a_state_word_is_full_where_there_are_more(
    service: FakeService, client: DaemonClient
) -> None:
    stalled = {"name": "step", "last_step": 5.0, "last_progress": 5.0, "stalled": True}
    for phase in (stalled, None, stalled, None, None, None, stalled, stalled):
        service.add(state="running", phase=phase)
    pages: list[list[int]] = []
    after = None
    while not pages or after is not None:
        query = "" if after is None else f"&after={after}"
        tree = client._object("GET", f"/v1/jobs?state_word=stalled&limit=3{query}")
        pages.append([job["id"] for job in tree["jobs"]])
        after = tree["next"]
    assert pages == [[8, 7, 3], [1]]


def test_attempts_are_shown_with_the_newest_one(service: FakeService, client: DaemonClient) -> None:
    service.add(state="running", attempts=(an_attempt(1), an_attempt(2)))
    job = client.job(1)
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["attempt"]["number"] == 2


def test_a_job_is_cancelled_once(service: FakeService, client: DaemonClient) -> None:
    service.add(uid=os.geteuid())
    assert client.cancel(1)["state"] == "cancelled"
    with pytest.raises(DaemonRefused, match="job 1 was cancelled") as refusal:
        client.cancel(1)
    assert (refusal.value.status, refusal.value.code) == (409, "conflict")


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"engine": "deepspeed"}, BadRequest, r"needs deepspeed\.config"),
        ({"train": {"steps": 1, "batch_size": 2, "precision": "fp16"}}, Unsupported, "fp16"),
        ({"ranks": 5}, BadRequest, "batch_size"),
    ],
)
def test_a_bad_job_is_refused_by_the_daemon_too(
    changes: dict[str, object], kind: type[Exception], said: str, client: DaemonClient
) -> None:
    with pytest.raises(kind, match=said):
        client._object("POST", "/v1/jobs", body={"job": JOB | changes})


def test_a_full_disk_is_a_refusal(service: FakeService, client: DaemonClient) -> None:
    service.error = Unavailable("the disk is full")
    with pytest.raises(DaemonRefused, match="the disk is full") as refusal:
        client.submit(a_job())
    assert refusal.value.status == 503


@pytest.mark.parametrize("job_id", [0, -1, 99, 10**30])
def test_a_job_that_is_not_there(job_id: int, client: DaemonClient) -> None:
    with pytest.raises(BadRequest, match="does not exist"):
        client.job(job_id)
