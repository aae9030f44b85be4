from __future__ import annotations

import time
from typing import Any

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.top.reading import job_list
from zerotools.cli.top.reading.job_list import JobList, completed, leased_jobs
from zerotools.core.errors import DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.interface.api_types import Event


class Counted(DaemonClient):
    """A client that notes what it is asked."""

    def __init__(self, client: DaemonClient) -> None:
        super().__init__(client.socket, timeout_seconds=10)
        self.asked: list[str] = []

    def _request(self, method: str, path: str, query: Any = None, **given: Any) -> Any:
        self.asked.append(f"{path} {(query or {}).get('state') or ''}".strip())
        return super()._request(method, path, query, **given)


def running(service: FakeService, number: int, step: int) -> None:
    progress = {**STEP, "step": step}
    attempts = (an_attempt(),)
    service.views[number] = a_view(
        number, a_job(), state="running", attempts=attempts, progress=progress
    )


def happened(service: FakeService) -> None:
    seq = len(service.feed) + 1
    service.feed.append(
        Event(
            seq=seq,
            time=1.0,
            job_id=1,
            attempt=None,
            kind="x",
            from_state=None,
            to_state=None,
            why=None,
        )
    )


def test_between_events_only_jobs_that_run_are_asked_for(
    service: FakeService, client: DaemonClient
) -> None:
    counted = Counted(client)
    running(service, 1, 5)
    service.views[2] = a_view(2, a_job(), state="queued")
    now = [0.0]
    jobs = JobList(counted, lambda: now[0])
    assert [job["id"] for job in jobs.read().jobs] == [1, 2]
    counted.asked.clear()
    running(service, 1, 6)
    now[0] = 2.0
    found = jobs.read().jobs
    assert found[0]["progress"]["step"] == 6
    assert counted.asked == ["/v1/events", "/v1/jobs running"]
    happened(service)
    service.views[3] = a_view(3, a_job(), state="queued")
    assert [job["id"] for job in jobs.read().jobs] == [1, 2, 3]


def test_a_change_without_an_event_is_seen_a_bit_later(
    service: FakeService, client: DaemonClient
) -> None:
    running(service, 1, 5)
    now = [0.0]
    jobs = JobList(client, lambda: now[0])
    jobs.read()
    service.change(1, state="paused")
    jobs.read()
    assert jobs.read().jobs[0]["state"] == "paused"
    service.views[2] = a_view(2, a_job(), state="queued")
    now[0] = job_list.WHOLE_SECONDS
    assert len(jobs.read().jobs) == 2


class WithoutEvents(DaemonClient):
    """A daemon that tells no events."""

    def events(self, since: int = 0, *, wait_seconds: float = 0) -> dict[str, Any]:
        raise DaemonRefused("no such path", status=404, code="no_such_path")


def test_where_nobody_tells_events_all_are_listed_each_time(
    service: FakeService, client: DaemonClient
) -> None:
    now = [0.0]
    jobs = JobList(WithoutEvents(client.socket, timeout_seconds=10), lambda: now[0])
    jobs.read()
    service.views[1] = a_view(1, a_job(), state="queued")
    now[0] = 1.0
    assert len(jobs.read().jobs) == 1


def test_jobs_that_ended_long_ago_are_left_out(service: FakeService, client: DaemonClient) -> None:
    now = time.time()
    for number, ended in ((1, now - 60), (2, now - 2 * job_list.ENDED_SECONDS)):
        service.views[number] = a_view(number, a_job(), state="failed", ended=ended)
    assert [job["id"] for job in JobList(client).read().jobs] == [1]


def test_of_a_thousand_jobs_those_that_run_are_there(
    service: FakeService, client: DaemonClient
) -> None:
    running(service, 1, 5)
    for number in range(2, 1002):
        service.views[number] = a_view(number, a_job(), state="queued")
    found = JobList(client).read()
    assert found.is_cut
    assert [job["id"] for job in found.jobs] == list(range(1, job_list.MOST + 2))


def test_a_daemon_that_tells_less_is_enough() -> None:
    job = completed([{"id": 7, "state": "running"}])[0]
    assert (job["attempts"], job["latest_checkpoint"], dict(job["spec"])) == ([], None, {})


def test_a_lease_of_a_job_that_is_not_listed_has_its_number() -> None:
    leases = [{"gpu_uuid": "a", "job_id": 9, "uid": 5}, {"gpu_uuid": "b", "job_id": 1}]
    found = leased_jobs(leases, completed([{"id": 1, "name": "x"}]))
    assert (found["a"]["id"], found["a"]["uid"], found["b"]["name"]) == (9, 5, "x")
