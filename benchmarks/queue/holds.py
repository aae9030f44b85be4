"""Measures how long one request holds the daemon's loop, each route with its largest body.

    chrt -r 10 python -m benchmarks.queue.holds [--clients 100] [--route NAME ...] [--jobs 10000]

100 clients ask for the daemon's health all the time, each on a connection of its own; the longest
time that an answer took, less the longest when nothing else is asked, is what the loop was held.
On a machine that does other work this is too much; so the longest step of the loop is measured in
processor time as well.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import string
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.queue.http_load import Load, connect, request, send
from benchmarks.queue.report import Asked, line, milliseconds
from benchmarks.queue.running import CPU, JOB, Daemon, daemon, end_everything
from benchmarks.queue.steps import FILE, Steps

LIMIT_SECONDS = 0.05
STEP_LIMIT_SECONDS = 0.025
"""Processor time of one step of the loop."""
REST_SECONDS = 0.3
PAUSE_SECONDS = 0.001
"""Between two requests of all clients together: a user may send 2,000 a second."""
LARGE, MANY = 840_000, 8_000


@dataclass(frozen=True)
class Route:
    """A request that is measured. `before` are sent first, and are not."""

    name: str
    requests: Callable[[], list[bytes]]
    before: Callable[[], list[bytes]] = list


def _post(path: str, body: Any) -> bytes:
    return request("POST", path, json.dumps(body).encode())


def _job(**changes: Any) -> dict[str, Any]:
    return {**JOB, **CPU, **changes}


def _submits(changes: dict[str, Any]) -> list[bytes]:
    return [_post("/v1/jobs", {"job": _job(**changes)})]


def _text(length: int) -> str:
    rng = random.Random(length)
    return "".join(rng.choices(string.ascii_letters + " -=/.", k=length))


def _command(words: int, length: int) -> dict[str, Any]:
    word = _text(length)
    return {"command": ["sleep", *[word] * words], "directory": "/"}


LONG = {"script": _command(6, LARGE // 6 // 1000 * 930)}
WORDY = {"script": _command(40_000, 3)}
VARIABLES = {"env": {f"V{number}": "x" for number in range(40_000)}}
SECRETS = {"env": {f"API_TOKEN_{number}": f"secret-{number}" for number in range(2000)}}
COMMAS = b'{"job": [' + b"{}," * 349_000 + b"{}]}"


def routes() -> Iterator[Route]:
    """Yield the routes to measure, in this order: later ones find the jobs of earlier ones."""
    for name, large in (("840 kB of command", LONG), ("40,000 words", WORDY)):
        yield Route(f"submit, {name}", partial(_submits, large))
    yield Route("submit, 40,000 variables", lambda: [_post("/v1/jobs", {"job": _job(**VARIABLES)})])
    yield Route(
        "submit, 2,000 secrets in 20,000 words",
        lambda: [_post("/v1/jobs", {"job": _job(**SECRETS, script=_command(20_000, 9))})],
    )
    yield Route("submit, 349,000 values", lambda: [request("POST", "/v1/jobs", COMMAS)])
    yield Route("check, 40,000 variables", lambda: [_post("/v1/check", {"job": _job(**VARIABLES)})])
    unset = [f"env.V{number}" for number in range(45_000)]
    yield Route("edit, unset of 45,000", lambda: [_post("/v1/jobs/4/edit", {"unset": unset})])
    values = {f"env.W{number}": "x" for number in range(40_000)}
    yield Route("edit, set of 40,000", lambda: [_post("/v1/jobs/5/edit", {"set": values})])
    small = _job(env={"A": _text(12_000)})
    yield Route(
        "array of 1,000 of 12 kB", lambda: [_post("/v1/arrays", {"job": small, "count": 1000})]
    )
    large = _job(env={f"V{number}": _text(100_000) for number in range(8)})
    yield Route("array of 19 of 840 kB", lambda: [_post("/v1/arrays", {"job": large, "count": 19})])
    yield Route(
        "show, 840 kB", lambda: [request("GET", "/v1/jobs/2"), request("GET", "/v1/jobs/3")]
    )
    yield Route(
        "list of 20 of 840 kB",
        lambda: [request("GET", "/v1/jobs?limit=20")] * 2,
        lambda: [_post("/v1/jobs", {"job": _job(**LONG)})] * 20,
    )
    yield Route("list of 1,000", lambda: [request("GET", "/v1/jobs?limit=1000")] * 2)
    numbers = list(range(10**6, 10**6 + 49_000))
    yield Route("clean of 49,000 numbers", lambda: [_post("/v1/clean", {"jobs": numbers})])
    yield Route("cancel of an array", lambda: [_post("/v1/jobs/10/array", {"do": "cancel"})])
    again = "/v1/jobs/10/array/retry"
    yield Route("retry of an array", lambda: [_post(again, {})])
    yield Route("retry from checkpoints", lambda: [_post(again, {"from_start": False})])
    yield Route("events", lambda: [request("GET", "/v1/events?since=0")])


class Clients:
    """Ask for the daemon's health until they are stopped."""

    def __init__(self, one: Daemon, count: int) -> None:
        self._links = connect(one.socket, count)
        self._stop = threading.Event()
        self._load: Load | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        def asked() -> Iterator[bytes]:
            while not self._stop.is_set():
                time.sleep(PAUSE_SECONDS)
                yield request("GET", "/v1/health")

        self._load = send(self._links, asked())

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for link in self._links:
            link.close()

    @property
    def worst(self) -> float:
        """The longest that an answer took, in seconds."""
        assert self._load is not None
        return max(self._load.latencies)


def held(one: Daemon, route: Route, clients: int) -> tuple[float, float, list[int]]:
    """Return how long the loop was held and the requests took, in seconds, and their statuses."""
    for each in route.before():
        send(connect(one.socket, 1), iter([each]))
    with Clients(one, clients) as idle:
        time.sleep(REST_SECONDS)
    with Clients(one, clients) as waiting:
        time.sleep(REST_SECONDS)
        found = send(connect(one.socket, 1), iter(route.requests()))
        time.sleep(REST_SECONDS)
    return waiting.worst - idle.worst, found.seconds, sorted(found.statuses)


@contextmanager
def watched(work: Path) -> Iterator[tuple[Daemon, Steps]]:
    """Run a daemon that notes the steps of its loop."""
    work.mkdir(exist_ok=True)
    file = work / "steps"
    file.touch()
    with daemon(work / "state", {FILE: str(file)}, "benchmarks.queue.steps") as one:
        yield one, Steps(file)


def _measured(asked: Asked, one: Daemon, steps: Steps, route: Route, clients: int) -> None:
    steps.longest()
    worst, took, statuses = held(one, route, clients)
    step = steps.longest()
    measured = f"held {worst * 1e3:7.1f} ms   longest step {step * 1e3:5.1f} ms of processor time"
    line(route.name, f"{measured}   took {took:6.2f} s   {statuses}")
    asked.below(f"the loop's longest hold: {route.name}", LIMIT_SECONDS, worst, milliseconds)
    name = f"the loop's longest step: {route.name}"
    asked.below(name, STEP_LIMIT_SECONDS, step, milliseconds)


def measure(asked: Asked, work: Path, clients: int, names: list[str]) -> None:
    """Measure the routes that have one of `names` in their name, or all if there are none."""
    with watched(work) as (one, steps):
        send(connect(one.socket, 1), iter([_post("/v1/jobs", {"job": _job()})]))
        for route in routes():
            if names and not any(name in route.name for name in names):
                continue
            _measured(asked, one, steps, route, clients)
    end_everything(work / "state")


def measure_list(asked: Asked, work: Path, clients: int, jobs: int) -> None:
    """Measure all pages of many jobs that have ended, with 100 kB of command each."""
    name = f"list of {jobs:,} of 100 kB"
    with daemon(work / "state") as one:
        send(connect(one.socket, 1), iter([_post("/v1/jobs", {"job": _job()})]))
        large = _job(script=_command(1, 100_000), name="large")
        send(connect(one.socket, 1), iter([_post("/v1/jobs", {"job": large})]))
    with sqlite3.connect(work / "state" / "zerotools.db") as database:
        kept = "uid, spec, spec_given, spec_version"
        database.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})"
            f" INSERT INTO job (name, output_dir, state, restarts_used, best_step, created,"
            f" started, ended, {kept}) SELECT 'old', '/nowhere', 'succeeded', 0, 0, 1, 2, 3, {kept}"
            " FROM n, (SELECT * FROM job WHERE name = 'large')"
        )
    database.close()
    with watched(work) as (one, steps):
        one.wait_until_quiet()
        pages = [f"/v1/jobs?limit=1000&after={after}" for after in range(jobs + 3, 0, -1000)]
        route = Route(name, lambda: [request("GET", page) for page in pages])
        _measured(asked, one, steps, route, clients)
    end_everything(work / "state")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--route", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=0, help="also list so many of 100 kB")
    options = parser.parse_args()
    print(f"{machine()}\n")
    asked = Asked()
    with tempfile.TemporaryDirectory() as work:
        measure(asked, Path(work), options.clients, options.route)
        if options.jobs:
            measure_list(asked, Path(work) / "many", options.clients, options.jobs)
    asked.show()


if __name__ == "__main__":
    main()
