"""Strangers cannot make the daemon work before it knows them."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from tests.daemon.http.api.test_bearer_tokens import ANNA
from tests.daemon.http.api.test_listening_sockets import ask, served
from zerotoolsd.http.api import connection_limits

BOMB_BYTES = 400 << 20


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """400 MiB of zeros, in 400 KiB."""
    return gzip.compress(bytes(BOMB_BYTES), 1)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with served(tmp_path) as (_, port):
        yield port


def send(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("POST", "/v1/jobs", body, headers)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "x"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Bearer {ANNA}"}], ids=["no", "yes"])
def test_a_compressed_body_is_refused(port: int, encoding: str, headers: dict[str, str]) -> None:
    status, body = send(port, b"x" * 100, {**headers, "Content-Encoding": encoding})
    assert status == 415
    assert b"without Content-Encoding" in body


def test_a_bomb_is_not_inflated(port: int, bomb: bytes) -> None:
    began = time.process_time()
    for who in ("", "Authorization: Bearer wrong\r\n", f"Authorization: Bearer {ANNA}\r\n"):
        with socket.create_connection(("127.0.0.1", port), 30) as link:
            head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{who}Content-Encoding: gzip\r\n"
            link.sendall(f"{head}Content-Length: {len(bomb)}\r\n\r\n".encode() + bomb)
            link.sendall(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answers = [link.recv(1 << 16)]
            with suppress(ConnectionResetError):
                answers += iter(lambda: link.recv(1 << 16), b"")  # until all is answered
            assert answers[0].startswith(b"HTTP/1.1 415")
    assert time.process_time() - began < 0.5, "inflated, it takes more than a second"


@pytest.mark.parametrize("value", ["", "identity", "IDENTITY"])
def test_a_body_as_it_is_is_taken(port: int, value: str) -> None:
    headers = {"Authorization": f"Bearer {ANNA}", "Content-Encoding": value}
    status, problem, _ = ask(port, "POST", "/v1/jobs", headers, {})
    assert (status, problem["detail"]) == (400, "the key 'job' is missing")


def test_the_rest_of_a_refused_body_is_not_read_for_ever(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b"401" in link.recv(1 << 16)
        sent, part = 0, b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 1 << 28:
                link.sendall(part)
                sent += len(part)
        assert sent < connection_limits.MOST_UNREAD + (8 << 20), "and the kernel's buffers"


class Nowhere(asyncio.Transport):
    """A transport of which nobody reads."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass

    close = abort


async def turns_of(body: bytes) -> int:
    """Turns of the loop until all of a chunked body is parsed."""
    bodies: list[bytes] = []

    async def read(request: web.BaseRequest) -> web.Response:
        bodies.append(await request.read())
        return web.Response()

    one = connection_limits.Connection(web.Server(read), asyncio.get_running_loop())
    one.connection_made(Nowhere())
    one.begin()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    one.data_received(head + body)
    turns = 0
    while not bodies:
        await asyncio.sleep(0)
        turns += 1
    assert bodies == [body.replace(b"1\r\nx\r\n", b"x")[:-5]]
    one.connection_lost(None)
    return turns


def test_a_body_of_many_chunks_is_parsed_in_turn_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk takes five microseconds, and a megabyte may be 170,000 of them."""
    body = b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"
    monkeypatch.setattr(connection_limits, "PARSE_SECONDS", 99.0)
    assert asyncio.run(turns_of(body)) < 10
    monkeypatch.setattr(connection_limits, "PARSE_SECONDS", 0.0)
    assert asyncio.run(turns_of(body)) >= len(body) // connection_limits.PARSE_BYTES
