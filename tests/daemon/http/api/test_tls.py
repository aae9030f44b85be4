"""TLS for real, with a certificate that openssl makes: who comes in, and who holds nothing up."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from harness.patience import Deadline
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from tests.daemon.http.api.test_bearer_tokens import ANNA, written
from zerotoolsd.config.config_tables import ApiConfig
from zerotoolsd.http.api import connection_limits
from zerotoolsd.http.api.listening_sockets import open_tcp

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
RIGHT = {"Authorization": f"Bearer {ANNA}"}
SUBJECT = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
AUTHORITY = """
[ca]
default_ca = own
[own]
new_certs_dir = .
database = index
serial = serial
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def openssl(place: Path, *words: str) -> None:
    subprocess.run(("openssl", *words), cwd=place, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good.pem` of today, and `old.pem` of 2020, each with its key."""
    place = tmp_path_factory.mktemp("certificates")
    keys = (*NEW_KEY, "-keyout", "good.key", "-out", "good.pem")
    openssl(place, "req", "-x509", "-days", "1", *keys, *SUBJECT)
    openssl(place, "req", "-new", *NEW_KEY, "-keyout", "old.key", "-out", "old.csr", *SUBJECT)
    (place / "ca.cnf").write_text(AUTHORITY)
    (place / "index").touch()
    (place / "serial").write_text("01\n")
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    files = ("-keyfile", "old.key", "-in", "old.csr", "-out", "old.pem", "-notext")
    openssl(place, "ca", "-batch", "-selfsign", "-config", "ca.cnf", *files, *dates)
    return place


@contextmanager
def served(
    tmp_path: Path, certificates: Path | None, name: str = "good", most: int | None = None
) -> Iterator[int]:
    """The port of a service, with TLS if there are `certificates`."""
    files = {}
    if certificates is not None:
        files = {
            "tls_certificate": str(certificates / f"{name}.pem"),
            "tls_key": str(certificates / f"{name}.key"),
        }
    tokens = written(tmp_path / "tokens", f"1000 {ANNA}")
    door = open_tcp(ApiConfig(listen="127.0.0.1:0", tokens=str(tokens), **files))
    assert door is not None
    port = door.listening.getsockname()[1]
    with serving(FakeService(tmp_path / "state"), tmp_path / "api.sock", tcp=door, most=most):
        yield port


def trusting(certificates: Path, name: str = "good") -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates / f"{name}.pem")


def ask(port: int, context: ssl.SSLContext, headers: dict[str, str] = RIGHT) -> tuple[int, str]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("GET", "/v1/health", headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read()).get("code", "")
    finally:
        connection.close()


def test_the_right_token_comes_in_and_no_other(tmp_path: Path, certificates: Path) -> None:
    with served(tmp_path, certificates) as port:
        context = trusting(certificates)
        assert ask(port, context) == (200, "")
        assert ask(port, context, {"Authorization": "Bearer wrong"}) == (401, "unauthorized")
        assert ask(port, context, {}) == (401, "unauthorized")


def test_a_client_refuses_a_certificate_that_expired_or_is_not_known(
    tmp_path: Path, certificates: Path
) -> None:
    with served(tmp_path, certificates, "old") as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            ask(port, trusting(certificates, "old"))
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, trusting(certificates))
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        assert ask(port, careless) == (200, "")  # whose fault it is; the daemon lives


def test_without_tls_nothing_is_said_to_a_port_that_has_it(
    tmp_path: Path, certificates: Path
) -> None:
    with served(tmp_path, certificates) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
            link.sendall(f"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {ANNA}\r\n\r\n".encode())
            assert b"HTTP" not in received(link)
        assert ask(port, trusting(certificates)) == (200, "")


def test_tls_to_a_port_without_is_an_error_there_and_no_more(
    tmp_path: Path, certificates: Path
) -> None:
    with served(tmp_path, None) as port:
        with pytest.raises(ssl.SSLError):
            ask(port, trusting(certificates))
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        plain.request("GET", "/v1/health", headers=RIGHT)
        assert plain.getresponse().status == 200
        plain.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_half_a_handshake_holds_no_place_for_long(
    tmp_path: Path, certificates: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)
    with (
        served(tmp_path, certificates, most=1) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as half,
    ):
        half.sendall(said)
        assert received(half) in (b"", b"\x15\x03\x01\x00\x02\x02\x50")  # closed; an alert at most
        end = Deadline(10)
        while not came_in(port, certificates):
            assert not end.has_passed()


def came_in(port: int, certificates: Path) -> bool:
    try:
        return ask(port, trusting(certificates)) == (200, "")
    except OSError:  # the one place is taken still
        return False


def received(link: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    try:
        while part := link.recv(4096):
            data += part
    except ConnectionError:
        pass
    return data


def test_at_a_public_address_there_is_tls(tmp_path: Path, certificates: Path) -> None:
    tokens = str(written(tmp_path / "tokens", f"1000 {ANNA}"))
    good = str(certificates / "good.pem"), str(certificates / "good.key")
    door = open_tcp(
        ApiConfig(listen="0.0.0.0:0", tokens=tokens, tls_certificate=good[0], tls_key=good[1])
    )
    assert door is not None
    assert door.tls is not None
    assert door.tls.minimum_version >= ssl.TLSVersion.TLSv1_2
    door.listening.close()


def test_many_that_begin_at_once_are_all_answered_and_silent_ones_hold_up_nobody(
    tmp_path: Path, certificates: Path
) -> None:
    context = ssl.create_default_context(cafile=str(certificates / "good.pem"))
    given = ssl.MemoryBIO()
    first = context.wrap_bio(ssl.MemoryBIO(), given, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        first.do_handshake()
    hello = given.read()
    with served(tmp_path, certificates) as port, ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            for _ in range(60)
        ]
        for link in links[:30]:
            link.sendall(hello)
        assert all(link.recv(1 << 10)[:1] == b"\x16" for link in links[:30])
        client = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
        client.request("GET", "/v1/health", headers=RIGHT)
        assert client.getresponse().status == 200
        client.close()


def test_a_handshake_that_has_begun_ends_when_no_more_are_accepted(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "SIGNING_TURNS", sys.maxsize)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "good.pem", certificates / "good.key")

    async def never(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("no request came")

    async def story() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        acceptor = connection_limits.ConnectionAcceptor(listening, web.Server(never), tls=context)
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(b"\x16")
            end = Deadline(10)
            while len(asyncio.all_tasks()) < 3:  # this one, the connection's and the handshake's
                assert not end.has_passed()
                await asyncio.sleep(0)
            acceptor.close()
            while len(asyncio.all_tasks()) > 1:
                assert not end.has_passed()
                await asyncio.sleep(0)

    asyncio.run(story())


def test_one_that_is_too_much_is_told_so_by_tls(tmp_path: Path, certificates: Path) -> None:
    with served(tmp_path, certificates, most=1) as port:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=10, context=trusting(certificates)
        )
        connection.request("GET", "/v1/health", headers=RIGHT)
        assert connection.getresponse().read()
        assert ask(port, trusting(certificates)) == (503, "too_many_connections")
        connection.close()
        end = Deadline(10)
        while not came_in(port, certificates):
            assert not end.has_passed()
