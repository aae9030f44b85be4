"""HTTP requests over many connections at once, from one thread that does as little as possible.

The daemon shares the machine with whoever measures it. So the requests are ready-made bytes, and of
the answers only the status and the length are read.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LENGTH = re.compile(rb"\r\nContent-Length: *([0-9]+)", re.IGNORECASE)
CHUNK = 1 << 18


@dataclass
class Load:
    """What came of the requests: seconds in all, seconds of each, answers by status."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    @property
    def errors(self) -> int:
        """Answers that are none, or a refusal."""
        return sum(number for status, number in self.statuses.items() if status >= 300)

    def percentile(self, share: float) -> float:
        """Seconds that this share of the answers took at most."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class _Link:
    sock: socket.socket
    began: float = 0.0
    received: bytearray = field(default_factory=bytearray)


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """One HTTP/1.1 request that keeps the connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def connect(path: Path, count: int) -> list[socket.socket]:
    """`count` connections to the daemon at `path`."""
    links = []
    for _ in range(count):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(str(path))
        links.append(link)
    return links


def send(links: list[socket.socket], requests: Iterator[bytes]) -> Load:
    """All of `requests`, one at a time over each of `links`."""
    load = Load()
    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for sock in links:
        link = _Link(sock)
        if _next(link, requests):
            selector.register(sock, selectors.EVENT_READ, link)
    while selector.get_map():
        for key, _ in selector.select():
            link = key.data
            link.received += link.sock.recv(CHUNK)
            status = _whole(link.received)
            if status is None:
                continue
            load.statuses[status] += 1
            load.latencies.append(time.perf_counter() - link.began)
            if not _next(link, requests):
                selector.unregister(link.sock)
    load.seconds = time.perf_counter() - began
    return load


def _next(link: _Link, requests: Iterator[bytes]) -> bool:
    data = next(requests, None)
    if data is None:
        return False
    link.received.clear()
    link.began = time.perf_counter()
    link.sock.sendall(data)
    return True


def _whole(received: bytearray) -> int | None:
    """The status of the answer, once all of it is there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(received, 0, end + 2)
    if length is None or len(received) < end + 4 + int(length[1]):
        return None
    return int(received[9:12])
