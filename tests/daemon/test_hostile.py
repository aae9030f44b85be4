"""P6: no client input can crash or wedge the daemon. Against the real one, over its socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon, daemon_in, make_job
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_address import connect_socket

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def posted(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


HOSTILE = {
    "garbage": bytes(range(256)) * 64,
    "no request": b"\r\n\r\n\r\n",
    "endless header": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "bad length": HEAD + b"Content-Length: -5\r\n\r\n",
    "huge length": HEAD + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 100_000,
    "huge body": posted(b"[" + b" " * 40_000_000 + b"]"),
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "bad chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "bad json": posted(b"{"),
    "deep json": posted(b'{"job":' + b"[" * 200_000),
    "bad utf-8": posted(b'{"job": "\xff\xfe"}'),
    "unknown fields": posted(b'{"job": {}, "evil": 1}'),
    "wrong types": posted(b'{"job": 7, "idempotency_key": []}'),
    "lone surrogate": posted(b'{"job": {"name": "\\ud800"}}'),
    "huge number": posted(b'{"job": {"seed": ' + b"9" * 10_000 + b"}}"),
    "traversal": b"GET /v1/jobs/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "strange id": b"GET /v1/jobs/%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "big id": b"GET /v1/jobs/99999999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n",
    "big since": b"GET /v1/events?since=99999999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n",
    "rank": b"GET /v1/jobs/1/logs?rank=../../x HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all: what one input spoils, the next one finds."""
    with daemon_in(tmp_path_factory.mktemp("hostile") / "state") as daemon:
        yield daemon.start()


def send(path: Path, data: bytes) -> bytes:
    """What comes back until the daemon closes or has nothing more to say."""
    link = connect_socket(path, 10.0)
    try:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while part := link.recv(65536):
            answer += part
    except (BrokenPipeError, ConnectionResetError):
        return b""
    else:
        return answer
    finally:
        link.close()


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_p6_hostile_bytes_are_answered_or_dropped(victim: Daemon, data: bytes) -> None:
    answer = send(victim.client.socket, data)
    status = answer.split(b" ", 2)[1] if answer else b"none"
    assert status == b"none" or status.startswith(b"4"), answer[:500]
    assert victim.process is not None
    assert victim.client.health()["pid"] == victim.process.pid


def test_p6_200_clients_at_once_are_all_answered(victim: Daemon) -> None:
    blocked = make_job("exit=0", ranks=8, train={"steps": 1, "batch_size": 8})

    def visit(number: int) -> bool:
        if number % 4 == 0:
            return bool(send(victim.client.socket, HOSTILE["garbage"])) or True
        if number % 4 == 1:
            with pytest.raises(BadRequest):
                victim.client.job(10_000 + number)
            return True
        if number % 4 == 2:
            return isinstance(victim.client.jobs(limit=5), list)
        return bool(victim.client.submit(blocked, idempotency_key=f"k{number}"))

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(visit, range(200)))
    assert len(victim.client.jobs(limit=1000)) == 50


def test_p6_idle_and_half_open_connections_do_not_lock_others_out(victim: Daemon) -> None:
    links = [connect_socket(victim.client.socket, 10.0) for _ in range(150)]
    try:
        for link in links:
            link.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-")
        assert victim.client.health()["uptime_seconds"] > 0
    finally:
        for link in links:
            link.close()


def test_p6_the_daemon_still_runs_jobs_afterwards(victim: Daemon) -> None:
    for job in victim.client.jobs(limit=1000):
        with suppress(DaemonRefused):  # it is over already
            victim.client.cancel(job["id"])
    job = victim.client.submit(make_job("steps=1 exit=0"))
    assert victim.wait_for_end(job["id"])["state"] == "succeeded"
