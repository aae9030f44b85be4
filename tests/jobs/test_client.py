"""The client against nobody, against strangers, and against a daemon that breaks off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zerotools.core.errors import DaemonRefused, DaemonUnreachable
from zerotools.jobs.client import DaemonClient


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[DaemonClient]:
    """Something that gives the same bytes to everyone who connects."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        link, _ = server.accept()
        with link:
            link.recv(1 << 16)
            link.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield DaemonClient(path, timeout_seconds=10)
    finally:
        thread.join(10)
        server.close()


def http_answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def test_nobody_there(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with pytest.raises(DaemonUnreachable, match="is zerotoolsd running") as error:
        DaemonClient(path).health()
    assert str(path) in str(error.value)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.close()
    with pytest.raises(DaemonUnreachable, match="is zerotoolsd running"):
        DaemonClient(path).health()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "broke off the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "broke off the connection"),
        (http_answer("200 OK", b"<html>"), "is not zerotoolsd"),
        (http_answer("200 OK", b"[1]"), "is not zerotoolsd"),
        (http_answer("500 Oops", b"<html>"), "is not zerotoolsd"),
    ],
)
def test_strangers(tmp_path: Path, answer: bytes, said: str) -> None:
    with (
        answering(tmp_path / "s", answer) as client,
        pytest.raises(DaemonUnreachable, match=said),
    ):
        client.health()


def test_a_refusal_keeps_its_status_and_code(tmp_path: Path) -> None:
    body = b'{"status": 409, "code": "conflict", "detail": "job 3 is over"}'
    with (
        answering(tmp_path / "s", http_answer("409 Conflict", body)) as client,
        pytest.raises(DaemonRefused, match="job 3 is over") as refusal,
    ):
        client.cancel(3)
    assert (refusal.value.status, refusal.value.code) == (409, "conflict")


def test_silence_is_given_up(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    with pytest.raises(DaemonUnreachable, match="did not answer within"):
        DaemonClient(tmp_path / "s", timeout_seconds=0.05).health()
    server.close()
