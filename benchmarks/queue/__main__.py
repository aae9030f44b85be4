"""The daemon under load.

    chrt -r 10 python -m benchmarks.queue [--jobs 10000] [--finished 100000] [--only NAME ...]

Prints a table. Jobs are of `engine = "script"`. One of them runs, and all others wait for it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.daemon import cpu_seconds, rss_mib
from benchmarks.measuring import machine
from benchmarks.queue.http_load import Load, connect, request, send

CONFIG = "[limits]\ncpu_ranks = 1\n"
JOB: dict[str, Any] = {
    "engine": "script",
    "device": "cpu",
    "ranks": 1,
    "script": {"command": ["sleep", "3600"], "directory": "/"},
}
READY = b"READY=1"


def submit(number: int) -> bytes:
    """The request that queues one job."""
    job = {**JOB, "name": f"job-{number}"}
    return request("POST", "/v1/jobs", json.dumps({"job": job}).encode())


class Daemon:
    """A zerotoolsd on a state directory; `seconds_to_ready` is what it told systemd."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.socket = state / "api.sock"
        config = state.parent / "zerotoolsd.toml"
        config.write_text(CONFIG)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            address = state.parent / "notify"
            address.unlink(missing_ok=True)
            notified.bind(str(address))
            notified.settimeout(600)
            began = time.perf_counter()
            with (state.parent / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "zerotoolsd", "--state-dir", state, "--config", config],
                    stderr=log,
                    env={**os.environ, "NOTIFY_SOCKET": str(address)},
                )
            while READY not in notified.recv(4096):
                pass
            self.seconds_to_ready = time.perf_counter() - began

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def wait_until_quiet(self) -> float:
        """Seconds until it has nothing more to do: it used no CPU for a quarter of a second."""
        began = time.perf_counter()
        used = -1.0
        while (now := cpu_seconds(self.process.pid)) != used:
            used = now
            time.sleep(0.25)
        return time.perf_counter() - began - 0.25


@contextmanager
def daemon(state: Path) -> Iterator[Daemon]:
    """A daemon; stopped in the end."""
    one = Daemon(state)
    try:
        yield one
    finally:
        one.stop()


def line(name: str, text: str) -> None:
    print(f"{name:<44} {text}", flush=True)


def show(name: str, load: Load) -> None:
    refused = {status: n for status, n in load.statuses.items() if status >= 300}
    line(
        name,
        f"{load.rate:8.0f} /s   median {load.percentile(0.5) * 1e3:6.1f} ms   "
        f"99 % {load.percentile(0.99) * 1e3:6.1f} ms   errors {sum(refused.values())}",
    )


def measure_submits(one: Daemon, jobs: int) -> None:
    """Jobs over 16 connections, until there are `jobs` in the queue."""
    links = connect(one.socket, 16)
    first = min(jobs, 1000)
    show("submits, 16 connections, the first 1,000", send(links, map(submit, range(first))))
    if jobs > first:
        show(
            f"submits, 16 connections, up to {jobs:,}", send(links, map(submit, range(first, jobs)))
        )
    line("  until the queue is at rest", f"{one.wait_until_quiet():.2f} s")


def measure_pages(one: Daemon, jobs: int) -> None:
    """Pages of 100, from the newest and from the middle, one after the other."""
    links = connect(one.socket, 1)
    page = request("GET", f"/v1/jobs?limit=100&after={jobs // 2}")
    show(f"a page of 100 of {jobs:,} jobs", send(links, iter([page] * 20)))
    show("one job", send(links, iter([request("GET", f"/v1/jobs/{jobs // 2}")] * 50)))


def measure_clients(one: Daemon) -> None:
    """1,000 connections at once, each of which asks and lists."""
    links = connect(one.socket, 1000)
    asked = [request("GET", "/v1/jobs?limit=5"), request("GET", "/v1/health")] * 1000
    show("1,000 clients: 5 jobs, health", send(links, iter(asked)))


def measure_pass(one: Daemon) -> None:
    """What one more event costs: a cancel wakes the scheduler, which looks at the whole queue."""
    links = connect(one.socket, 1)
    one.wait_until_quiet()
    used = cpu_seconds(one.process.pid)
    cancels = [request("POST", f"/v1/jobs/{number}/cancel") for number in range(100, 130)]
    for each in cancels:
        send(links, iter([each]))
        one.wait_until_quiet()
    spent = cpu_seconds(one.process.pid) - used
    line("a cancel and the pass after it", f"{spent / len(cancels) * 1e3:.1f} ms of processor")


def add_finished(state: Path, count: int) -> None:
    """`count` jobs that are over, with an attempt each and three events: copies of the queue's."""
    with sqlite3.connect(state / "zerotools.db") as database:
        database.execute("PRAGMA foreign_keys = OFF")
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        )
        kept = "uid, spec, spec_given, spec_version"
        database.execute(
            f"{numbers} INSERT INTO job (name, output_dir, state, restarts_used, best_step,"
            f" created, started, ended, {kept}) SELECT 'old', '/nowhere', 'succeeded', 0, 0, 1, 2,"
            f" 3, {kept} FROM n, (SELECT * FROM job WHERE id = 50)"
        )
        database.execute(
            "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids, started, ended,"
            " result) SELECT id, 1, 'token-' || id, 'ended', '/nowhere', '[]', 2, 3, '{}' FROM job"
            " WHERE name = 'old'"
        )
        for kind in ("submit", "admit", "finished"):
            database.execute(
                "INSERT INTO event (time, job_id, kind, to_state) SELECT 1, id, ?, 'succeeded'"
                " FROM job WHERE name = 'old'",
                (kind,),
            )
    database.close()


def measure_restart(state: Path, finished: int, jobs: int) -> None:
    add_finished(state, finished)
    with daemon(state) as one:
        line(
            f"restart, {finished:,} over and {jobs:,} queued",
            f"READY after {one.seconds_to_ready:.2f} s, at rest {one.wait_until_quiet():.2f} s "
            f"later, {rss_mib(one.process.pid):.1f} MiB",
        )
        measure_pages(one, jobs)


def measure_idle(one: Daemon, name: str, seconds: float) -> None:
    one.wait_until_quiet()
    used = cpu_seconds(one.process.pid)
    time.sleep(seconds)
    share = (cpu_seconds(one.process.pid) - used) / seconds
    line(f"idle daemon, {name}", f"{share:.2%} CPU, {rss_mib(one.process.pid):.1f} MiB")


def measure_supervisor(one: Daemon, seconds: float) -> None:
    """Of the one job that runs; it sleeps."""
    run = one.state / "jobs" / "1" / "attempt-1" / "run.json"
    pid = json.loads(run.read_text())["pid"]
    used = cpu_seconds(pid)
    time.sleep(seconds)
    share = (cpu_seconds(pid) - used) / seconds
    line("the supervisor of a job that sleeps", f"{share:.2%} CPU, {rss_mib(pid):.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument(
        "--idle", type=float, default=20.0, help="seconds to look at an idle daemon"
    )
    options = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR")) as work:
        state = Path(work) / "state"
        with daemon(state) as one:
            line("start with an empty state", f"READY after {one.seconds_to_ready:.2f} s")
            measure_idle(one, "empty", options.idle)
            measure_submits(one, options.jobs)
            measure_supervisor(one, options.idle)
            measure_pages(one, options.jobs)
            measure_clients(one)
            measure_pass(one)
            measure_idle(one, f"{options.jobs:,} queued", options.idle)
        measure_restart(state, options.finished, options.jobs)
        end_everything(state)


def end_everything(state: Path) -> None:
    """End the one job that runs: its supervisor ends with its rank."""
    record = json.loads((state / "jobs" / "1" / "attempt-1" / "run.json").read_text())
    for rank in record["ranks"]:
        os.kill(rank["pid"], signal.SIGKILL)
    while Path(f"/proc/{record['pid']}").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
