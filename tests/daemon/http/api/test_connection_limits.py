"""Clients that are too many, too slow, or gone: refused, and the next one is served."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.waiting import wait_async
from zerotoolsd.http.api import connection_limits
from zerotoolsd.http.api.connection_limits import (
    HEAD_SECONDS,
    READ_SECONDS,
    RUSH,
    MemoryTrimmer,
    UserConnections,
    raise_connection_limit,
    trim_memory,
)
from zerotoolsd.http.api.listening_sockets import open_socket
from zerotoolsd.http.api.routes import make_app
from zerotoolsd.http.api.server import ApiServer
from zerotoolsd.interface.api_types import JobView

AIOHTTP = tuple(map(int, version("aiohttp").split(".")[:2]))

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bench:
    """A server in this loop, and clients of it."""

    def __init__(self, server: ApiServer, path: Path) -> None:
        self.server = server
        self.path = path
        self.links: list[Link] = []

    async def connect(self, said: bytes = b"") -> Link:
        link = await asyncio.open_unix_connection(self.path)
        self.links.append(link)
        link[1].write(said)
        await self.settle()
        return link

    async def settle(self) -> None:
        """Let the server read what was sent: it runs in this loop."""
        for _ in range(10):
            await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        """As if so long had passed."""
        assert self.server.door is not None
        self.server.door.close_slow(asyncio.get_running_loop().time() + seconds)

    async def is_served(self) -> bool:
        reader, writer = await self.connect(HEALTH)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head.startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def bench(path: Path, service: FakeService, most: int) -> AsyncIterator[Bench]:
    server = ApiServer(make_app(service), open_socket(path), path, close_seconds=0.1, most=most)
    await server.start()
    one = Bench(server, path)
    try:
        yield one
    finally:
        for _, writer in one.links:
            writer.close()
        await server.close()


def tell(
    tmp_path: Path,
    story: Callable[[Bench], Awaitable[None]],
    *,
    most: int = 100,
    service: FakeService | None = None,
) -> None:
    async def told() -> None:
        where = tmp_path / "api.sock"
        async with bench(where, service or FakeService(tmp_path), most) as one:
            await story(one)

    asyncio.run(told())


def test_more_connections_than_there_is_room_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(it: Bench) -> None:
        for _ in range(3):
            await it.connect()
        reader, _ = await it.connect()
        head, body = (await reader.read()).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"application/problem+json" in head
        problem = json.loads(body)
        assert problem["code"] == "too_many_connections"
        assert problem["detail"] == "there are 3 connections already; try again later"
        it.pass_time(HEAD_SECONDS + 1)  # those that leaked have said nothing
        await it.settle()
        assert await it.is_served()

    tell(tmp_path, story, most=3)
    assert "there are 3 connections already" in caplog.text


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Not one more than there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_it_says_so_once_and_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "RETRY_SECONDS", 0.01)

    async def story(it: Bench) -> None:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        client.connect(str(it.path))
        with no_descriptors_left():
            await it.settle()
        answer = client.recv(4096)
        client.close()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"no file descriptors left (Too many open files)" in answer
        assert await it.is_served()

    tell(tmp_path, story)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(
    "said", [b"", b"GET /v1/jobs HT", b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Slow: a"]
)
def test_half_a_request_is_not_waited_for(tmp_path: Path, said: bytes) -> None:
    async def story(it: Bench) -> None:
        reader, _ = await it.connect(said)
        it.pass_time(HEAD_SECONDS - 1)
        await it.settle()
        assert not reader.at_eof()
        it.pass_time(HEAD_SECONDS + 1)
        assert await reader.read() == b""
        assert await it.is_served()

    tell(tmp_path, story)


def test_a_connection_that_is_used_again_may_rest_between(tmp_path: Path) -> None:
    async def story(it: Bench) -> None:
        reader, writer = await it.connect()
        for _ in range(2):
            writer.write(HEALTH)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            it.pass_time(HEAD_SECONDS + 1)
        writer.write(b"GET /v1/he")
        await it.settle()
        it.pass_time(HEAD_SECONDS + 1)
        assert await reader.read() == b""

    tell(tmp_path, story)


def test_a_body_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerotoolsd.http.api.request_validation.BODY_SECONDS", 0.01)

    async def story(it: Bench) -> None:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        reader, _ = await it.connect(head)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"code": "timeout"' in answer
        assert await it.is_served()

    tell(tmp_path, story)


def test_an_answer_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    service = FakeService(tmp_path)
    for _ in range(1000):
        service.add()

    async def story(it: Bench) -> None:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(it.path))
        client.sendall(b"GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert it.server.door is not None
        server = it.server._runner.server
        assert server is not None

        async def waits() -> int:
            return _unread(server.connections[0]) if server.connections else 0

        await wait_async(waits, "an answer that is not read")
        it.pass_time(0)
        it.pass_time(READ_SECONDS - 1)
        assert _unread(server.connections[0])
        it.pass_time(READ_SECONDS + 1)
        await it.settle()
        assert not any(_unread(each) for each in server.connections)
        client.close()
        assert await it.is_served()

    tell(tmp_path, story, service=service)


def _unread(connection: object) -> int:
    transport = getattr(connection, "transport", None)
    return 0 if transport is None else int(transport.get_write_buffer_size())


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"NOT HTTP AT ALL\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
        pytest.param(
            b"GET /v1/health HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
            marks=pytest.mark.skipif(
                AIOHTTP < (3, 14), reason="aiohttp limited the bytes of headers, not their number"
            ),
        ),
        b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: \x00\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem(tmp_path: Path, raw: bytes) -> None:
    async def story(it: Bench) -> None:
        reader, _ = await it.connect(raw)
        answer = await reader.read()
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"] == "bad_request"
        assert await it.is_served()

    tell(tmp_path, story)


def test_what_a_client_asked_who_is_gone_is_not_done(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(FakeService):
        async def job(self, job_id: int) -> JobView:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    async def story(it: Bench) -> None:
        _, writer = await it.connect(b"GET /v1/jobs/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        await begun.wait()
        writer.close()
        await ended.wait()

    slow = Slow(tmp_path)
    slow.add()
    tell(tmp_path, story, service=slow)


def test_a_socket_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async def story(it: Bench) -> None:
        reader, writer = await it.connect()
        it.server.keep_socket()
        assert await it.is_served()
        it.path.unlink()
        it.server.keep_socket()
        assert await it.is_served()
        writer.write(HEALTH)  # who was connected stays so
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        it.path.unlink()
        it.path.write_text("somebody's file")
        it.server.keep_socket()
        assert it.path.read_text() == "somebody's file"

    tell(tmp_path, story)


def test_a_state_directory_that_was_moved_away_is_not_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        state = tmp_path / ("deep" * 20) / ("state" * 20)  # longer than an address of a socket
        path = state / "api.sock"
        server = ApiServer(
            make_app(FakeService(tmp_path)), open_socket(path), path, state_dir=state
        )
        assert server.address == path
        await server.start()
        state.rename(tmp_path / "moved")
        server.keep_socket()
        assert not state.exists()
        (tmp_path / "moved").rename(state)
        server.keep_socket()
        assert path.is_socket()
        await server.close()

    asyncio.run(story())


def test_there_is_room_for_a_thousand() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert 8 <= raise_connection_limit() <= connection_limits.MOST
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_rush_that_is_over_is_noticed_once() -> None:
    ends: list[int] = []
    watch = MemoryTrimmer(lambda: ends.append(1))
    for count in (3, RUSH - 1, 0, RUSH, RUSH * 5, RUSH, RUSH * 5 // 8 + 1):
        watch.update(count)
    assert ends == []
    watch.update(RUSH * 5 // 8)
    watch.update(0)
    assert ends == [1]
    watch.update(RUSH)
    watch.update(2)
    assert ends == [1, 1]


def test_it_can_be_asked_on_any_machine() -> None:
    trim_memory()


ME = os.geteuid()


def test_each_user_has_an_eighth_and_an_eighth_is_for_the_daemons_own() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        others = UserConnections(64, own=ME + 1) if ME else None
        own = UserConnections(64, own=ME)
        assert {own.enter(ours) for _ in range(1000)} == {(ME, None)}
        if others is None:
            return  # root has what there is, whosever the daemon is
        assert [others.enter(ours)[1] for _ in range(8)] == [None] * 8
        assert others.enter(ours) == (ME, f"uid {ME} has 8 connections already")
        others.leave(ME)
        assert others.enter(ours)[1] is None


def test_clients_by_tcp_are_two_users_together() -> None:
    shares = UserConnections(64)
    with socket.socket(socket.AF_INET) as link:
        assert [shares.enter(link)[1] for _ in range(16)] == [None] * 16
        assert shares.enter(link) == (None, "clients by TCP have 16 connections already")
        for _ in range(16):
            shares.leave(None)
        assert shares.enter(link)[1] is None


def test_all_others_together_leave_an_eighth() -> None:
    shares = UserConnections(8)
    with socket.socket(socket.AF_INET) as link:
        assert [shares.enter(link)[1] for _ in range(5)] == [None] * 4 + [
            "users have 4 connections already"
        ]
