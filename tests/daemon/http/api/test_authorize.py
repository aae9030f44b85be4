"""Whether a request may do what it asks, over all routes: a new one needs no line here."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB, an_attempt
from tests.daemon.http.api.serving import serving
from tests.daemon.http.api.test_bearer_tokens import ANNA, written
from tests.daemon.http.api.test_every_route import OPERATIONS, Operation
from zerotoolsd.config.config_tables import ApiConfig
from zerotoolsd.http.api.authorize import decide
from zerotoolsd.http.api.listening_sockets import open_tcp
from zerotoolsd.http.api.request_limits import CONCURRENT
from zerotoolsd.http.api.routes import ROUTES, make_app
from zerotoolsd.interface.api_types import Event, Forbidden
from zerotoolsd.users.rights import Action, Reach

ANNAS, BOBS = os.geteuid() + 4711, os.geteuid() + 4712
"""Neither is the daemon's own user, so neither is an administrator."""
SECRETS = ("thesis", "/home/bob", "hunter2", "no memory left")
ACTIONS = {(route.path, route.method): action for route, action in ROUTES}


def test_every_route_says_who_may(tmp_path: Path) -> None:
    routes = [
        route for route in make_app(FakeService(tmp_path)).router.routes() if route.method != "HEAD"
    ]
    assert len(routes) == len(ROUTES)
    assert {route.handler for route, _ in ROUTES} == {route.handler for route in routes}
    assert len({route.handler for route, _ in ROUTES}) == len(ROUTES)  # they are told apart by it
    for route, action in ROUTES:
        if "{id}" in route.path:
            assert action.reach in (Reach.OWN, Reach.GLANCE), route.path


def test_what_no_rule_is_about_is_refused(tmp_path: Path) -> None:
    request = make_mocked_request("GET", "/v1/unruled", app=make_app(FakeService(tmp_path)))
    with pytest.raises(Forbidden, match="no rule"):
        asyncio.run(decide(request, 0))


class Bench:
    """A daemon with a running job and one that is over of bob's, and one of anna's, who asks."""

    def __init__(self, service: FakeService, port: int) -> None:
        self.service, self.port = service, port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            text = None if body is None else json.dumps(body)
            known = {"Authorization": f"Bearer {ANNA}", **headers}
            connection.request(method.upper(), path, text, known)
            response = connection.getresponse()
            if "stream" in path:  # it goes on: its first event is enough
                data = b"".join(response.readline() for _ in range(6)).decode()
            else:
                data = response.read().decode()
            return response.status, data, response.headers
        finally:
            connection.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    where = tmp_path_factory.mktemp("asked")
    door = open_tcp(
        ApiConfig(listen="127.0.0.1:0", tokens=str(written(where / "tokens", f"{ANNAS} {ANNA}")))
    )
    assert door is not None
    service = FakeService(where / "state")
    hers = {"name": "thesis", "reason": "no memory left", "output_dir": "/home/bob/out"}
    running = an_attempt(run_dir="/home/bob/run", cause="no memory left")
    service.add(uid=BOBS, state="running", attempts=(running,), **hers)
    service.add(uid=BOBS, state="failed", ended=3.0, **hers)
    service.add(uid=ANNAS, name="mine")
    service.write(1, "rank-0.log", b"hunter2")
    for seq, uid in ((1, BOBS), (2, ANNAS)):
        service.feed.append(
            Event(
                seq=seq,
                time=1.0,
                job_id=seq,
                attempt=1,
                kind="crashed",
                from_state=None,
                to_state=None,
                why="no memory left" if uid == BOBS else "mine alone",
                uid=uid,
            )
        )
    service.leases = [
        {"gpu_uuid": "GPU-1", "job_id": 1, "attempt": 1, "held_by": "thesis", "uid": BOBS}
    ]
    port = door.listening.getsockname()[1]
    with serving(service, where / "api.sock", tcp=door):
        yield Bench(service, port)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_what_is_another_users_is_neither_seen_nor_changed(
    operation: Operation, bench: Bench
) -> None:
    action = ACTIONS[operation.path, operation.method.upper()]
    before = (dict(bench.service.views), list(bench.service.cleans))
    body = None
    if operation.method != "get":
        body = {"dry_run": True} if action is Action.CLEAN else operation.body
    for job in (1, 2):
        target = operation.path.replace("{id}", str(job))
        status, data, _ = bench.ask(operation.method, target, body)
        assert not [word for word in SECRETS if word in data], data
        if action.reach is Reach.OWN:
            assert (status, json.loads(data)["code"]) == (403, "forbidden")
            why = f"job {job} belongs to uid {BOBS}, and you are uid {ANNAS}"
            assert (why if "{id}" in operation.path else "only administrators may") in data
            assert bench.service.views == before[0]
        else:
            assert status < 300, data
            if "{id}" not in operation.path:
                break
    for job_id in [each for each in bench.service.views if each > 3]:
        assert bench.service.views.pop(job_id).uid == ANNAS
    bench.service.cleans[:] = before[1]


FORGED: tuple[tuple[str, str, Any, int], ...] = (
    ("POST", "/v1/jobs", {"job": JOB, "uid": BOBS}, 400),
    ("POST", "/v1/jobs", {"job": JOB, "user": "bob"}, 400),
    ("POST", "/v1/jobs", {"job": {**JOB, "uid": BOBS}}, 400),
    ("POST", "/v1/jobs", {"job": JOB, "uid": -1}, 400),
    ("POST", "/v1/clean", {"uid": BOBS}, 400),
    ("POST", "/v1/clean", {"of": None}, 400),
    ("POST", f"/v1/jobs/1/cancel?uid={BOBS}", None, 400),
    ("POST", "/v1/jobs/1/cancel", {"uid": 0}, 403),
    ("POST", "/v1/jobs/-1/cancel", None, 404),
    ("POST", "/v1/jobs/4294967295/cancel", None, 404),
    ("POST", "/v1/jobs/01/cancel", None, 403),
    ("GET", "/v1/jobs/+1/logs", None, 404),
    ("HEAD", "/v1/jobs/1/logs", None, 403),
    ("GET", "/v1/jobs/1/logs?attempt=7", None, 403),
    ("GET", "/v1/jobs/1/logs?rank=99", None, 403),
    ("GET", "/v1/jobs/999/logs", None, 404),
)


@pytest.mark.parametrize(("method", "path", "body", "status"), FORGED)
def test_nothing_that_is_sent_says_who_asks(
    bench: Bench, method: str, path: str, body: Any, status: int
) -> None:
    before = dict(bench.service.views)
    for name in ("X-Remote-User", "Zerotools-Uid", "X-Forwarded-User", "From"):
        got, data, _ = bench.ask(method, path, body, **{name: str(BOBS)})
        assert got == status, data
        assert not [word for word in SECRETS if word in data], data
    assert bench.service.views == before


def test_a_name_is_looked_for_among_ones_own_jobs(bench: Bench) -> None:
    for limit in (1, 2, 100):
        _, data, _ = bench.ask("GET", f"/v1/jobs?name=thesis&limit={limit}")
        assert json.loads(data) == {"jobs": [], "next": None}
    _, data, _ = bench.ask("GET", "/v1/jobs?name=mine")
    assert [job["id"] for job in json.loads(data)["jobs"]] == [3]


def test_the_tag_of_what_one_user_sees_is_of_that_view(bench: Bench) -> None:
    _, data, headers = bench.ask("GET", "/v1/jobs/1")
    tag = headers["ETag"]
    assert bench.ask("GET", "/v1/jobs/1", **{"If-None-Match": tag})[0] == 304
    before = bench.service.views[1]
    bench.service.change(1, reason="another", progress={"loss": 1.0})
    assert bench.ask("GET", "/v1/jobs/1", **{"If-None-Match": tag})[0] == 304  # she sees no change
    bench.service.change(1, state="stopping")
    assert bench.ask("GET", "/v1/jobs/1", **{"If-None-Match": tag})[0] == 200
    bench.service.views[1] = before
    assert json.loads(data)["masked"] is True


def test_one_user_is_answered_sixteen_at_a_time(bench: Bench) -> None:
    inside, most, full = 0, 0, asyncio.Event()

    async def check() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == CONCURRENT:
            full.set()
        await full.wait()
        inside -= 1

    bench.service.during_check = check
    with ThreadPoolExecutor(CONCURRENT + 4) as threads:
        asked = [
            threads.submit(bench.ask, "POST", "/v1/check", {"job": JOB})
            for _ in range(CONCURRENT + 4)
        ]
        assert {each.result()[0] for each in asked} == {200}
    assert most == CONCURRENT
