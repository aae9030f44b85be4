"""P6, of every route of the document: what is not as it says is refused with a problem, and nothing
is changed. A new route is tried without a line here."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.daemon.http.api.fakes import ADOPTABLE, FakeService
from tests.daemon.http.api.made_views import JOB, an_attempt
from tests.daemon.http.api.openapi.test_openapi_document import misfits
from tests.matrices import FULL
from zerotools.jobs.client.daemon_address import connect_socket
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api.openapi.openapi_document import document

METHODS = ("get", "post", "put", "patch", "delete")
ODD_NUMBERS = ("", "x", "-1", "1.5", "1e3", "0x1", "9" * 30, "9" * 4000, "NaN", "%D9%A1", "%00")
ODD_IDS = (
    *ODD_NUMBERS[1:],
    "0",
    "%ff",
    "..%2f..%2fetc%2fpasswd",
    "1%2f..%2f2",
    "1%00",
    "%F0%9F%92",
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 10**30, "x\0", "\udcff", "\ud800", "../../x", [], [[]], {}, {"a": 1}),
)
ODD_BODIES = (
    *(b"", b"[]", b"3", b'"x"', b"null", b"{", b"\xff\xfe{}", b'{"\xc3\x28": 1}', b"{}{}"),
    *(b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1, "a": 1}', b'{"uid": 0}', b'{"\\u0000": 1}'),
    *(b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 100_000, b'{"a": "' + b"x" * (1 << 20) + b'"}'),
)


class Operation(NamedTuple):
    """One request of the document."""

    path: str
    method: str
    tree: dict[str, Any]

    @property
    def target(self) -> str:
        """Of a job that is there."""
        return self.path.replace("{id}", "1")

    @property
    def body(self) -> dict[str, Any] | None:
        """One that is right."""
        if self.method == "get":
            return None
        text = '{"train_batch_size": 8}'
        right = {"job": JOB, "priority": 3, "pid": ADOPTABLE, "do": "cancel", "text": text}
        schema = resolved(self._schema)
        needed = schema.get("anyOf", [schema])[0].get("required", ())
        return {name: copy.deepcopy(right[name]) for name in needed}

    @property
    def needs_body(self) -> bool:
        """Whether an empty body is refused."""
        return bool(self.tree.get("requestBody", {}).get("required"))

    @property
    def _schema(self) -> dict[str, Any]:
        """Of the body."""
        if "requestBody" not in self.tree:
            return {}
        return dict(self.tree["requestBody"]["content"]["application/json"]["schema"])

    @property
    def properties(self) -> dict[str, Any]:
        """The schemas of the keys of the body."""
        return dict(resolved(self._schema).get("properties", {}))

    def parameters(self, place: str) -> dict[str, Any]:
        """The schemas of its parameters in the `query` or the `path`."""
        found = self.tree.get("parameters", ())
        return {each["name"]: each["schema"] for each in found if each["in"] == place}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """What it refers to."""
    found: Any = schema
    while "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        found = document()["components"]["schemas"][name]
    return dict(found)


OPERATIONS = [
    Operation(path, method, tree)
    for path, operations in document()["paths"].items()
    for method, tree in operations.items()
]


class Asker:
    """Asks over one connection, and knows what every refusal has in common."""

    def __init__(self, client: DaemonClient, service: FakeService) -> None:
        self._socket = client.socket
        self._service = service
        self._before = (dict(service.views), dict(service.keys))
        self._connect()

    def _connect(self) -> None:
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = connect_socket(self._socket, 10)

    def refused(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> dict[str, Any]:
        """The problem that is answered; nothing was changed."""
        self._connection.request(method.upper(), target, body, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.will_close:
            self._connection.close()
            self._connect()
        said = f"{method} {target[:100]} {(body or b'')[:2000]!r}: {response.status} {data[:300]!r}"
        assert 400 <= response.status < 500, said
        assert response.headers["Content-Type"].startswith("application/problem+json"), said
        problem = json.loads(data)
        assert misfits(problem, {"$ref": "#/components/schemas/Problem"}) == [], said
        assert problem["status"] == response.status, said
        assert 10 < len(problem["detail"]) < 3000, said
        assert "Traceback" not in problem["detail"], said
        service = self._service
        assert (service.views, service.keys) == self._before, said
        assert (service.cleans, service.uids) == ([], []), said
        return dict(problem)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def asker(
    service: FakeService, client: DaemonClient, caplog: pytest.LogCaptureFixture
) -> Iterator[Asker]:
    service.add(attempts=(an_attempt(),), state="running")
    service.add(state="succeeded", ended=3.0)
    service.write(1, "rank-0.log", b"a line")
    found = Asker(client, service)
    yield found
    found.close()
    assert client.health()["pid"] == 1  # the daemon lives
    assert "a defect" not in caplog.text


def each_operation(where: str | None = None) -> Any:
    """All of them, or those that have something there."""
    found = [
        pytest.param(each, id=f"{each.method} {each.path}")
        for each in OPERATIONS
        if where is None or each.parameters(where) or (where == "body" and each.properties)
    ]
    return pytest.mark.parametrize("operation", found)


@each_operation()
def test_the_query_has_nothing_else_and_nothing_twice(operation: Operation, asker: Asker) -> None:
    body = None if operation.body is None else json.dumps(operation.body).encode()
    for odd in (
        "jub=1",
        "uid=0",
        "=",
        "%ff=1",
        "%00=1",
        "id=2",
        "x" * 4000,
        "a[]=1",
        "__proto__=1",
    ):
        problem = asker.refused(operation.method, f"{operation.target}?{odd}", body)
        assert problem["detail"].startswith("unknown key of the query")
    for name in operation.parameters("query"):
        near = asker.refused(operation.method, f"{operation.target}?{name}s=1", body)
        assert near["detail"].endswith(f"did you mean {name}?")
        twice = asker.refused(operation.method, f"{operation.target}?{name}=1&{name}=1", body)
        assert twice["detail"].startswith(f"{name}: is given 2 times in the query")


@each_operation("query")
def test_values_of_the_query(operation: Operation, asker: Asker) -> None:
    for name in operation.parameters("query"):
        for odd in ODD_NUMBERS:
            if name == "name":
                continue  # a job may have any
            if (name, odd) == ("offset", "-1") or (name, odd) in (("wait", "1.5"), ("wait", "1e3")):
                continue  # from the end; a fraction of a second, or longer than it may be
            if name == "wait" and odd == "9" * 30:
                continue
            problem = asker.refused(operation.method, f"{operation.target}?{name}={odd}")
            assert name in problem["detail"]


@each_operation("path")
def test_ids_that_no_job_has(operation: Operation, asker: Asker) -> None:
    body = None if operation.body is None else json.dumps(operation.body).encode()
    for odd in ODD_IDS:
        target = operation.path.replace("{id}", odd)
        code = asker.refused(operation.method, target, body)["code"]
        assert code in ("not_found", "no_such_path")
    raw = operation.path.replace("{id}", "1/../2")
    assert asker.refused(operation.method, raw)["code"] == "no_such_path"
    missing = operation.path.replace("{id}", "999")
    assert asker.refused(operation.method, missing, body)["code"] == "not_found"


@each_operation()
def test_other_methods(operation: Operation, asker: Asker) -> None:
    listed = document()["paths"][operation.path]
    for method in METHODS:
        if method not in listed:
            assert asker.refused(method, operation.target)["code"] == "method_not_allowed"


@each_operation()
def test_bodies_that_are_none(operation: Operation, asker: Asker) -> None:
    if operation.method == "get":
        return  # what comes with it has no meaning (RFC 9110, 9.3.1)
    for body in ODD_BODIES:
        if body or operation.needs_body:
            asker.refused(operation.method, operation.target, body)
    asker.refused(operation.method, operation.target, b"\x1f\x8bno", **{"Content-Encoding": "gzip"})


@each_operation("body")
def test_values_of_every_key_of_the_body(operation: Operation, asker: Asker) -> None:
    right = operation.body
    assert right is not None
    shallow = () if FULL or operation.path == "/v1/jobs" else ("job",)
    for body, where in wrong_bodies(right, operation.properties, (), shallow):
        problem = asker.refused(operation.method, operation.target, json.dumps(body).encode())
        assert where[-1] in problem["detail"], (where, problem["detail"])


def wrong_bodies(
    right: dict[str, Any],
    properties: dict[str, Any],
    above: tuple[str, ...],
    shallow: tuple[str, ...] = (),
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """`right` with one key that has a value of another kind, or that is none, and where it is. The
    keys of the tables `shallow`, which another route has too, are left out."""
    yield {**right, "jub": 1}, (*above, "jub")
    for name, schema in properties.items():
        where, inner = (*above, name), resolved(schema)
        for odd in ODD_VALUES:
            if is_odd(odd, inner):
                yield {**right, name: odd}, where
        if "properties" in inner and name not in shallow:
            table = right.get(name, {})
            for below, place in wrong_bodies(table, inner["properties"], where):
                yield {**right, name: below}, place


def is_odd(value: Any, schema: dict[str, Any]) -> bool:
    """Whether it is of another type, or text that nothing can be called."""
    if not schema.keys() - {"description"}:
        return False  # of any type
    text = isinstance(value, str) and any(
        "\ud800" <= letter <= "\udfff" or letter == "\0" for letter in value
    )
    return text or misfits(value, schema) != []


def test_who_asks_is_not_what_a_header_says(asker: Asker, service: FakeService) -> None:
    for name in ("X-Remote-User", "X-Forwarded-User", "Zerotools-Uid", "Remote-User"):
        service.change(1, uid=4711)
        asker._before = (dict(service.views), dict(service.keys))
        asker.refused("POST", "/v1/jobs", b'{"job": {}, "uid": 4711}', **{name: "4711"})


def test_ids_are_quoted_in_what_is_said(asker: Asker) -> None:
    problem = asker.refused("GET", f"/v1/jobs/{quote(chr(27))}[2J")
    assert "\x1b" not in problem["detail"]
