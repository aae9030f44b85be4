from __future__ import annotations

import socket

import pytest

from tests.daemon.http.api.fakes import FakeService
from zerotools.jobs.client.daemon_address import connect_socket
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.http.api import events
from zerotoolsd.http.api.events import event_stream_bytes
from zerotoolsd.interface.api_types import Event


def test_events_are_followed_by_sequence(service: FakeService, client: DaemonClient) -> None:
    assert client.events(wait_seconds=0) == {"events": [], "next": 0}
    for seq in (1, 2):
        service.feed.append(
            Event(
                seq=seq,
                time=0.0,
                job_id=1,
                attempt=None,
                kind="admit",
                from_state="queued",
                to_state="launching",
                why=None,
            )
        )
    assert [event["seq"] for event in client.events(1)["events"]] == [2]
    assert client.events(1)["next"] == 2


def opened(client: DaemonClient, query: str = "", *headers: str) -> socket.socket:
    link = connect_socket(client.socket, 10)
    head = "".join(f"{header}\r\n" for header in headers)
    link.sendall(f"GET /v1/events/stream{query} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
    return link


def until(link: socket.socket, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        part = link.recv(4096)
        assert part, data
        data += part
    return data


def test_the_stream_goes_on_where_a_client_lost_it(
    client: DaemonClient, service: FakeService
) -> None:
    service.feed += [an_event(seq) for seq in (1, 2, 3)]
    with opened(client) as link:
        data = until(link, b"id: 3\n")
        assert b"text/event-stream" in data
        assert data.count(b"event: submit\n") >= 3
    with opened(client, "?since=0", "Last-Event-ID: 2") as link:
        data = until(link, b"id: 3\n")
        assert b"id: 2\n" not in data
    with opened(client, "?since=1") as link:
        assert b"id: 1\n" not in until(link, b"id: 3\n")


def test_who_hears_nothing_is_told_so(
    client: DaemonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.01)
    with opened(client) as link:
        until(link, b": still here\n\n")
    assert client.health()["pid"] == 1


@pytest.mark.parametrize(
    ("query", "header"),
    [
        ("?since=-1", "A: b"),
        ("?since=x", "A: b"),
        ("", "Last-Event-ID: x"),
        ("", "Last-Event-ID: -1"),
    ],
)
def test_a_place_that_is_none(client: DaemonClient, query: str, header: str) -> None:
    with opened(client, query, header) as link:
        assert until(link, b"bad_request").startswith(b"HTTP/1.1 400")


def an_event(seq: int) -> Event:
    return Event(
        seq=seq,
        time=1.0,
        job_id=1,
        attempt=None,
        kind="submit",
        from_state=None,
        to_state="queued",
        why="two\n\nlines",
    )


def test_an_event_is_one_frame() -> None:
    lines = event_stream_bytes(an_event(7)).decode().split("\n")
    assert lines[:2] == ["id: 7", "event: submit"]
    assert lines[2].startswith('data: {"seq": 7')
    assert lines[3:] == ["", ""]
