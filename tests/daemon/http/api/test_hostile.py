"""P6: whatever a client sends, it gets a problem and the daemon answers the next one."""

from __future__ import annotations

import gzip
import http.client
import json
from typing import Any

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB
from zerotools.jobs.client.daemon_address import connect_socket
from zerotools.jobs.client.daemon_client import DaemonClient


def ask(
    client: DaemonClient, method: str, target: str, body: bytes | None = None, **headers: str
) -> Any:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect_socket(client.socket, 10)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b"{}", 400, "'job' is missing"),
        (b'{"job": {}, "jub": 1}', 400, "unknown key 'jub'"),
        (b'{"job": {}, "job": {}}', 400, "appears twice"),
        (b'{"job": 3}', 400, "must be a table"),
        (b'{"job": {"train": {"steps": NaN}}}', 400, "NaN is not a JSON number"),
        (b'{"job": ' + b"9" * 5000 + b"}", 400, "not valid JSON"),
        (b'{"job": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", 400, "nested too deeply"),
        (b'{"job": ' + b'{"a":' * 40_000, 400, "nested too deeply"),
        (b'{"job": [' + b"1," * 50_000 + b"1]}", 400, "the request has about 50,002 values"),
        (b'{"job": "' + b"," * 60_000 + b'"}', 400, "must be a table"),
        (b'{"job": {"name": "' + b"x" * 140_000 + b'"}}', 400, "has 140,000 characters"),
        (b'{"job": {"name": "' + b'\\"\\\\' * 70_000 + b'"}}', 400, "has 140,000 characters"),
        (b'{"job": ' + b" " * 140_000 + b"3}", 400, "must be a table"),
        (b'{"job": {"name": "\\ud800"}}', 400, "name"),
        (b'{"job": {}, "idempotency_key": 7}', 400, "idempotency_key"),
        (b'{"job": {}, "idempotency_key": "a\\u0000"}', 400, "idempotency_key"),
        (b" " * (1 << 20) + b"{}", 413, "longer than 1048576 bytes"),
    ],
)
def test_bad_bodies(
    body: bytes, status: int, said: str, service: FakeService, client: DaemonClient
) -> None:
    response, tree = ask(client, "POST", "/v1/jobs", body)
    assert response.headers["Content-Type"].startswith("application/problem+json")
    assert (response.status, tree["status"]) == (status, status)
    assert said in tree["detail"]
    assert service.views == {}
    assert client.health()["pid"] == 1


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/", 404, "no_such_path"),
        ("GET", "/v1/jobs/1/../../etc", 404, "no_such_path"),
        ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/jobs?limit=0", 400, "bad_request"),
        ("GET", "/v1/jobs?limit=1e3", 400, "bad_request"),
        ("GET", "/v1/jobs?limit=%D9%A1", 400, "bad_request"),
        ("GET", "/v1/jobs?state=resting", 400, "bad_request"),
        ("GET", "/v1/jobs/one", 404, "not_found"),
        ("GET", "/v1/jobs/%2e%2e", 404, "not_found"),
        ("GET", "/v1/jobs/1%00", 404, "not_found"),
        ("GET", "/v1/events?since=-1", 400, "bad_request"),
        ("GET", "/v1/events?wait=nan", 400, "bad_request"),
        ("GET", "/v1/events?wait=inf", 400, "bad_request"),
    ],
)
def test_bad_targets(
    method: str, target: str, status: int, code: str, client: DaemonClient
) -> None:
    response, tree = ask(client, method, target)
    assert (response.status, tree["code"]) == (status, code)


@pytest.mark.parametrize("body", [gzip.compress(b" " * (64 << 20)), b"\x1f\x8bnot gzip"])
def test_a_compressed_body_is_refused(body: bytes, client: DaemonClient) -> None:
    response, tree = ask(client, "POST", "/v1/jobs", body, **{"Content-Encoding": "gzip"})
    assert (response.status, tree["code"]) == (415, "encoded")


def test_a_client_that_leaves_in_the_middle_is_no_defect(
    client: DaemonClient, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_socket(client.socket, 10) as link:
        link.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    assert client.health()["pid"] == 1
    assert "a defect" not in caplog.text


def test_a_defect_is_hidden_from_the_client_and_logged(
    service: FakeService, client: DaemonClient, caplog: pytest.LogCaptureFixture
) -> None:
    service.error = RuntimeError("the password is hunter2")
    body = json.dumps({"job": JOB}).encode()
    response, tree = ask(client, "POST", "/v1/jobs", body)
    assert (response.status, tree["code"]) == (500, "internal")
    assert "hunter2" not in json.dumps(tree)
    assert "the password is" in caplog.text


@pytest.mark.parametrize("raw", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST"])
def test_what_is_not_http_at_all(raw: bytes, client: DaemonClient) -> None:
    with connect_socket(client.socket, 10) as link:
        link.sendall(raw)
    assert client.health()["pid"] == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"jobs": "1"}', "jobs: must be null or a list of int"),
        (b'{"jobs": [true]}', "jobs: must be null or a list of int"),
        (b'{"jobs": [' + b"9" * 30 + b"]}", "jobs: a number in it does not fit in 64 bits"),
        (b'{"keep": ' + b"9" * 30 + b"}", "keep: must be"),
        (b'{"states": ["running"]}', "states: 'running' is not one of cancelled, failed"),
        (b'{"older_than_seconds": -1}', "older_than_seconds: must be"),
        (b'{"older_than_seconds": "1d"}', "older_than_seconds: must be"),
        (b'{"older_than_seconds": 1e999}', "older_than_seconds: must be"),
        (b'{"older_than_seconds": 1' + b"0" * 400 + b"}", "older_than_seconds: must be"),
        (b'{"keep": -1}', "keep: must be"),
        (b'{"keep": 1.5}', "keep: must be"),
        (b'{"dry_run": 1}', "dry_run: must be true or false"),
        (b'{"outputs": true}', "outputs = true: needs the key jobs"),
        (b'{"outputs": true, "jobs": []}', "outputs = true: needs the key jobs"),
        (b'{"outputs": true, "jobs": [1], "logs_only": true}', "contradict each other"),
        (b'{"all": true}', "unknown key 'all'"),
    ],
)
def test_bad_wishes_remove_nothing(
    body: bytes, said: str, service: FakeService, client: DaemonClient
) -> None:
    service.add(state="succeeded")
    response, tree = ask(client, "POST", "/v1/clean", body)
    assert response.status == 400
    assert said in tree["detail"]
    assert list(service.views) == [1]


@pytest.mark.parametrize("expectation", ["", "100-continue", "100-Continue", "nonsense", "200-ok"])
def test_expectations_other_than_to_be_asked_for_the_body_are_ignored(
    client: DaemonClient, expectation: str
) -> None:
    head = f"POST /v1/undrain HTTP/1.1\r\nHost: x\r\nExpect: {expectation}\r\nContent-Length: 2\r\n"
    with connect_socket(client.socket, 10) as link, link.makefile("rb") as stream:
        link.sendall(f"{head}\r\n".encode())
        if expectation.lower() == "100-continue":
            assert (stream.readline(), stream.readline()) == (b"HTTP/1.1 100 Continue\r\n", b"\r\n")
        link.sendall(b"{}")
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
