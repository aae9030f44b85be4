from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import JOB
from tests.daemon.http.api.serving import serving
from tests.daemon.http.api.test_bearer_tokens import ANNA, written
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.config.config_tables import ApiConfig
from zerotoolsd.http.api import routes
from zerotoolsd.http.api.listening_sockets import open_socket, open_tcp


def test_the_socket_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "run" / "api.sock"
    open_socket(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    open_socket(path).close()
    living = open_socket(path)
    with pytest.raises(DaemonRefused, match="another zerotoolsd already listens"):
        open_socket(path)
    living.close()


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(BadRequest, match="exists and is not a socket"):
        open_socket(path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_path_longer_than_an_address(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / ("e" * 120) / "api.sock"
    with serving(FakeService(tmp_path), path):
        assert DaemonClient(path).health()["version"] == "0"
    assert not path.exists()


@contextmanager
def served(tmp_path: Path) -> Iterator[tuple[FakeService, int]]:
    """A service, and the port where it is to be found; its only token is of uid 1000."""
    tokens = written(tmp_path / "tokens", f"1000 {ANNA}")
    door = open_tcp(ApiConfig(listen="127.0.0.1:0", tokens=str(tokens)))
    assert door is not None
    port = door.listening.getsockname()[1]
    service = FakeService(tmp_path / "state")
    with serving(service, tmp_path / "api.sock", tcp=door):
        yield service, port


def ask(
    port: int, method: str, path: str, headers: Mapping[str, str], body: Any = None
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def test_a_token_says_who_asks_and_nothing_else_does(tmp_path: Path) -> None:
    with served(tmp_path) as (service, port):
        right = {"Authorization": f"Bearer {ANNA}"}
        forged = {**right, "X-Forwarded-User": "root", "X-Remote-User": "0", "Zerotools-Uid": "0"}
        status, job, _ = ask(port, "POST", "/v1/jobs", forged, {"job": JOB})
        assert (status, job["uid"]) == (201, 1000)
        status, problem, _ = ask(port, "POST", "/v1/jobs", right, {"job": JOB, "uid": 0})
        assert (status, problem["code"]) == (400, "bad_request")
        assert len(service.views) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {ANNA}"}]
)
def test_without_one_nothing_is_answered(
    tmp_path: Path, method: str, headers: Mapping[str, str]
) -> None:
    with served(tmp_path) as (service, port):
        for path in ("/v1/jobs", "/v1/health", "/v1/no/such", "/v1/events/stream"):
            status, problem, answered = ask(port, method, path, headers)
            assert (status, problem["code"]) == (401, "unauthorized")
            assert answered["WWW-Authenticate"] == "Bearer"
        assert service.views == {}


def test_tokens_cannot_be_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WRONG_TOKENS", 2.0)
    with served(tmp_path) as (_, port):
        codes = [ask(port, "GET", "/v1/health", {})[1]["code"] for _ in range(20)]
        assert codes[:2] == ["unauthorized", "unauthorized"]
        assert "rate_limited" in codes
        assert ask(port, "GET", "/v1/health", {"Authorization": f"Bearer {ANNA}"})[0] == 200


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:80", "others could read the tokens on the network"),
        ("[::]:80", "others could read the tokens on the network"),
        ("192.0.2.7:80", "others could read the tokens on the network"),
        ("example.org:80", "must be an address and a port"),
        ("127.0.0.1", "must be an address and a port"),
        ("127.0.0.1:65536", "must be an address and a port"),
        ("127.0.0.1:-1", "must be an address and a port"),
    ],
)
def test_addresses_that_will_not_do(listen: str, why: str) -> None:
    with pytest.raises(BadRequest) as refused:
        open_tcp(ApiConfig(listen=listen, tokens="/no/such"))
    assert why in str(refused.value)


def test_tls_takes_a_certificate_and_its_key(tmp_path: Path) -> None:
    key = written(tmp_path / "key", "no key")
    for config in (
        ApiConfig(listen="0.0.0.0:0", tls_key=str(key)),
        ApiConfig(listen="0.0.0.0:0", tls_key=str(key), tls_certificate=str(key)),
        ApiConfig(listen="0.0.0.0:0", tls_key="/no/such", tls_certificate="/no/such"),
    ):
        with pytest.raises(BadRequest, match=r"api\.tls_certificate"):
            open_tcp(config)
    assert open_tcp(ApiConfig()) is None


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    tokens = str(written(tmp_path / "tokens", f"0 {ANNA}"))
    door = open_tcp(ApiConfig(listen="127.0.0.1:0", tokens=tokens))
    assert door is not None
    with door.listening as listening:
        port = listening.getsockname()[1]
        with pytest.raises(BadRequest, match="cannot listen there"):
            open_tcp(ApiConfig(listen=f"127.0.0.1:{port}", tokens=tokens))
