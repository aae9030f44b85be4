"""What clients ask of the daemon, in parts."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from benchmarks.daemon import cpu_seconds
from benchmarks.queue.http_load import Load, connect, request, send
from benchmarks.queue.report import line, show
from benchmarks.queue.running import Daemon, submit

STREAMS = 200
LOCKED_SECONDS = 1.0


def submits(one: Daemon, jobs: int) -> Load:
    """Jobs over 16 connections, until there are `jobs`; the load of those after the first 1,000."""
    links = connect(one.socket, 16)
    first = min(jobs, 1000)
    load = send(links, map(submit, range(first)))
    show("submits, 16 connections, the first 1,000", load)
    if jobs > first:
        load = send(links, map(submit, range(first, jobs)))
        show(f"submits, 16 connections, up to {jobs:,}", load)
    for link in links:
        link.close()
    line("  until the queue is at rest", f"{one.wait_until_quiet():.2f} s")
    return load


def pages(one: Daemon, jobs: int) -> Load:
    """Pages of 100 from the middle, one after the other."""
    (link,) = connect(one.socket, 1)
    page = request("GET", f"/v1/jobs?limit=100&after={jobs // 2}")
    load = send([link], iter([page] * 20))
    show(f"a page of 100 of {jobs:,} jobs", load)
    show("one job", send([link], iter([request("GET", f"/v1/jobs/{jobs // 2}")] * 50)))
    link.close()
    return load


def clients(one: Daemon) -> Load:
    """1,000 connections at once, each of which asks and lists."""
    links = connect(one.socket, 1000)
    asked = [request("GET", "/v1/jobs?limit=5"), request("GET", "/v1/health")] * 1000
    load = send(links, iter(asked))
    show("1,000 clients: 5 jobs, health", load)
    for link in links:
        link.close()
    return load


def cancels(one: Daemon, numbers: range) -> float:
    """Processor seconds of a cancel with all that follows: its commit, its event, a pass."""
    (link,) = connect(one.socket, 1)
    one.wait_until_quiet()
    used = cpu_seconds(one.pid)
    for number in numbers:
        send([link], iter([request("POST", f"/v1/jobs/{number}/cancel")]))
        time.sleep(0.15)
    one.wait_until_quiet()
    return (cpu_seconds(one.pid) - used) / len(numbers)


def streams(one: Daemon, numbers: range) -> float:
    """Processor seconds of the same where 200 clients hear each event as it comes."""
    newest = _newest_event(one.state)
    links = connect(one.socket, STREAMS)
    for link in links:
        link.sendall(f"GET /v1/events/stream?since={newest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    for link in links:
        link.settimeout(60)
        link.recv(4096)
    spent = cancels(one, numbers)
    heard = 0
    for link in links:
        link.setblocking(False)
        data = link.recv(1 << 20)
        heard += data.count(b"\nevent: cancel\n")
        link.close()
    line(
        f"a cancel that {STREAMS} streams hear",
        f"{spent * 1e3:.1f} ms of processor, {heard} of {STREAMS * len(numbers)} events heard",
    )
    return spent


def _newest_event(state: Path) -> int:
    with closing(sqlite3.connect(state / "zerotools.db")) as database:
        return int(database.execute("SELECT max(seq) FROM event").fetchone()[0])


def foreign_lock(one: Daemon) -> float:
    """The longest answer while another process holds the queue's lock for a second, and a submit
    waits for it."""
    begun = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(one.state / "zerotools.db")) as database:
            database.execute("BEGIN IMMEDIATE")
            begun.set()
            time.sleep(LOCKED_SECONDS)
            database.rollback()

    def queue_one() -> None:
        waiting.append(send(connect(one.socket, 1), iter([submit(0)])))

    waiting: list[Load] = []
    threads = [threading.Thread(target=each) for each in (hold, queue_one)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    links = connect(one.socket, 1)
    asked = Load()
    while threads[0].is_alive():
        asked.latencies += send(links, iter([request("GET", "/v1/jobs?limit=5")])).latencies
        time.sleep(0.02)
    threads[1].join()
    line(
        "while another process locks the queue for 1 s",
        f"a list takes at most {max(asked.latencies) * 1e3:.1f} ms, a submit "
        f"{waiting[0].latencies[0]:.2f} s, errors {waiting[0].errors}",
    )
    return max(asked.latencies)
