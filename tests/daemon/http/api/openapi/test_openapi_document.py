"""The document says what there is: the routes, and what they take and answer."""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB, an_attempt
from zerotools.jobs.client.daemon_address import connect_socket
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import OLD_VERBS
from zerotoolsd.http.api.openapi.answer_schemas import answer_components, explanation_components
from zerotoolsd.http.api.openapi.openapi_document import document
from zerotoolsd.http.api.openapi.request_paths import result_components
from zerotoolsd.http.api.openapi.request_schemas import request_components
from zerotoolsd.http.api.openapi.schema_builders import tables_of
from zerotoolsd.http.api.routes import make_app
from zerotoolsd.interface.api_types import Event

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def _within(value: float, schema: dict[str, Any]) -> bool:
    if value <= schema.get("exclusiveMinimum", -math.inf):
        return False
    return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))


def misfits(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """Where `value` is not as `schema` says; as much of JSON Schema as the document uses."""
    if "$ref" in schema:
        found: Any = document()
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return misfits(value, found, where)
    if "anyOf" in schema:
        each = [misfits(value, one, where) for one in schema["anyOf"]]
        return [] if [] in each else each[0]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r}"]
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted
    if names and not any(isinstance(value, TYPES[name]) for name in names):
        return [f"{where}: {value!r} is no {wanted}"]
    if names and isinstance(value, bool) and "boolean" not in names:
        return [f"{where}: {value!r} is no {wanted}"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [] if _within(value, schema) else [f"{where}: {value} is out of bounds"]
    if isinstance(value, list):
        items = schema.get("items", {})
        return [m for n, one in enumerate(value) for m in misfits(one, items, f"{where}[{n}]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    wrong = [
        f"{where}.{name}: is missing" for name in schema.get("required", ()) if name not in value
    ]
    for name, inner in value.items():
        if name in known:
            wrong += misfits(inner, known[name], f"{where}.{name}")
        elif schema.get("additionalProperties") is False:
            wrong.append(f"{where}.{name}: is not known")
    return wrong


def of_answer(method: str, path: str, status: int) -> dict[str, Any]:
    responses = document()["paths"][path][method]["responses"]
    answer = responses[str(status)]
    if "$ref" in answer:
        name = answer["$ref"].removeprefix("#/components/responses/")
        answer = document()["components"]["responses"][name]
    (content,) = answer["content"].values()
    return dict(content["schema"])


def test_every_route_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    routes = {
        (route.resource.canonical, route.method.lower())
        for route in make_app(FakeService(tmp_path)).router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    listed = {(path, method) for path, item in document()["paths"].items() for method in item}
    assert listed == routes


def operations() -> list[dict[str, Any]]:
    return [tree for item in document()["paths"].values() for tree in item.values()]


def schemas(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in `tree`, `tree` itself first."""
    if isinstance(tree, dict):
        yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from schemas(each)


def test_it_is_an_openapi_document() -> None:
    openapi_spec_validator.validate(document())


def test_each_operation_has_a_name_of_its_own() -> None:
    names = [each["operationId"] for each in operations()]
    assert len({*names}) == len(names)
    assert all(re.fullmatch("[a-z]+([A-Z][a-z]+)+", name) for name in names)


def test_all_objects_have_names() -> None:
    components = document()["components"]["schemas"]
    inner = [each for tree in components.values() for each in [*schemas(tree)][1:]]
    outer = [each for tree in operations() for each in schemas(tree)]
    assert [each for each in (*inner, *outer) if {"properties", "type"} <= {*each}] == []


def test_all_names_are_known_and_used() -> None:
    known = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in document()["components"][kind]
    }
    assert {each["$ref"] for each in schemas(document()) if "$ref" in each} == known


def test_no_component_takes_the_name_of_another() -> None:
    parts = (
        tables_of(JobSpec),
        request_components(),
        answer_components(),
        explanation_components(),
        result_components(),
    )
    assert sum(map(len, parts)) == len(document()["components"]["schemas"])


@pytest.fixture
def full(service: FakeService) -> FakeService:
    service.add(attempts=(an_attempt(),), state="running")
    service.add(state="succeeded", ended=3.0)
    service.write(1, "rank-0.log", b"a line")
    service.feed.append(
        Event(
            seq=1,
            time=1.0,
            job_id=1,
            attempt=1,
            kind="submit",
            from_state=None,
            to_state="queued",
            why=None,
        )
    )
    return service


def ask(client: DaemonClient, method: str, path: str, body: Any = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect_socket(client.socket, 10)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        return response, json.loads(data) if data else None
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "target", "body", "status"),
    [
        ("post", "/v1/jobs", "/v1/jobs", {"job": JOB}, 201),
        ("post", "/v1/jobs", "/v1/jobs", {"job": {}}, 400),
        ("get", "/v1/jobs", "/v1/jobs?limit=2", None, 200),
        ("get", "/v1/jobs", "/v1/jobs?limit=x", None, 400),
        ("get", "/v1/jobs/{id}", "/v1/jobs/1", None, 200),
        ("get", "/v1/jobs/{id}", "/v1/jobs/9", None, 404),
        ("get", "/v1/jobs/{id}/explain", "/v1/jobs/1/explain", None, 200),
        ("post", "/v1/jobs/{id}/cancel", "/v1/jobs/1/cancel", None, 202),
        ("post", "/v1/jobs/{id}/cancel", "/v1/jobs/2/cancel", None, 409),
        ("post", "/v1/jobs/{id}/resume", "/v1/jobs/2/resume", None, 201),
        ("get", "/v1/jobs/{id}/progress", "/v1/jobs/1/progress", None, 200),
        ("post", "/v1/check", "/v1/check", {"job": JOB}, 200),
        ("post", "/v1/clean", "/v1/clean", {"dry_run": True}, 200),
        ("get", "/v1/events", "/v1/events", None, 200),
        ("get", "/v1/machine", "/v1/machine", None, 200),
        ("get", "/v1/shares", "/v1/shares", None, 200),
        ("get", "/v1/health", "/v1/health", None, 200),
        ("get", "/v1/openapi.json", "/v1/openapi.json", None, 200),
    ],
)
def test_answers_are_as_it_says(
    full: FakeService,
    client: DaemonClient,
    method: str,
    path: str,
    target: str,
    body: Any,
    status: int,
) -> None:
    response, tree = ask(client, method.upper(), target, body)
    assert response.status == status, tree
    assert misfits(tree, of_answer(method, path, status)) == []


def test_a_job_that_is_taken_is_one_as_it_says() -> None:
    schema = document()["components"]["schemas"]["Job"]
    script = {"engine": "script", "device": "cpu", "script": {"command": ["train.py"]}}
    for good in (JOB, script):
        assert misfits(good, schema) == []
    for bad in ({**JOB, "jub": 1}, {**JOB, "ranks": "2"}, {**JOB, "device": "tpu"}):
        assert misfits(bad, schema) != []


def test_a_page_says_where_the_next_one_begins(full: FakeService, client: DaemonClient) -> None:
    full.add()
    _, first = ask(client, "GET", "/v1/jobs?limit=2")
    assert [job["id"] for job in first["jobs"]] == [3, 2]
    _, last = ask(client, "GET", f"/v1/jobs?limit=2&after={first['next']}")
    assert [job["id"] for job in last["jobs"]] == [1]
    assert (first["next"], last["next"]) == (2, None)


def test_jobs_are_found_by_the_words_for_their_states(
    full: FakeService, client: DaemonClient
) -> None:
    held = [full.add(state=state).id for state in ("on_hold", "paused", "held")]
    holding = full.add(state="pausing").id
    _, body = ask(client, "GET", "/v1/jobs?state_word=held")
    assert [job["id"] for job in body["jobs"]] == held[::-1]
    assert {job["state_word"] for job in body["jobs"]} == {"held"}
    assert [job["state"] for job in body["jobs"]] == ["held", "paused", "on_hold"], "as stored"
    for query, found in (
        ("state_word=holding", [holding]),
        ("state=held", held[-1:]),
        ("state=paused&state_word=held", held[1:2]),
        ("state=running&state_word=held", []),
    ):
        _, body = ask(client, "GET", f"/v1/jobs?{query}")
        assert [job["id"] for job in body["jobs"]] == found, query
    phase = {"name": "step", "last_step": 5.0, "last_progress": 5.0, "stalled": True}
    hung = full.add(state="running", phase=phase).id
    launched = full.add(state="launching").id
    for query, found in (
        ("state_word=stalled", [hung]),
        ("state_word=starting", [launched]),
        ("state_word=late", []),
    ):
        _, body = ask(client, "GET", f"/v1/jobs?{query}")
        assert [job["id"] for job in body["jobs"]] == found, query
    response, body = ask(client, "GET", "/v1/jobs?state_word=on_hold")
    assert (response.status, body["code"]) == (400, "bad_request")


def test_older_names_are_marked_in_the_document() -> None:
    paths = document()["paths"]
    marked = {
        path.rpartition("/")[2] for path in paths if paths[path].get("post", {}).get("deprecated")
    }
    assert marked == set(OLD_VERBS)


@pytest.mark.parametrize("target", ["/v1/jobs", "/v1/jobs/1"])
def test_what_is_known_is_not_sent_again(
    full: FakeService, client: DaemonClient, target: str
) -> None:
    response, _ = ask(client, "GET", target)
    tag = response.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        response, tree = ask(client, "GET", target, **{"If-None-Match": known})
        assert (response.status, tree, response.headers["ETag"]) == (304, None, tag)
    full.change(1, reason="another one")
    response, tree = ask(client, "GET", target, **{"If-None-Match": tag})
    assert response.status == 200
    assert tree


def test_another_version_of_the_api_is_named(client: DaemonClient) -> None:
    for target in ("/v2/jobs", "/v0", "/v999999999/"):
        response, problem = ask(client, "GET", target)
        assert (response.status, problem["code"]) == (404, "no_such_version")
        assert problem["detail"].startswith("this daemon speaks version 1 of the API, not")
    assert ask(client, "GET", "/v1/none")[1]["code"] == "no_such_path"
