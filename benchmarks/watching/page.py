"""The page for browsers in Chromium: how much is sent, when it paints, and what an open one costs
the daemon.

    python -m benchmarks.watching.page

A daemon of its own with jobs whose program only reports: `JOBS` of `STEPS` steps that are over, and
one that goes on with five steps a second. Each visit is by a browser that has nothing of the page.

Bytes are counted twice: as `transferSize`, which takes 300 bytes for the headers of each response
(W3C, "Resource Timing"), and as they are sent, with the real headers, as the browser's debugger
counts them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.daemon import daemon
from benchmarks.measuring import machine
from harness.browser import started_browser, why_no_browser
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL

VISITS, JOBS, STEPS, WATCHED_SECONDS = 9, 20, 5000, 20.0
CONFIG = """
[gpus]
locks = ""
[limits]
cpu_ranks = 4
"""
PROGRAM = """
import math, sys, time
from zerotools import worker
steps, more = int(sys.argv[1]), int(sys.argv[2])
for step in range(1, steps + more + 1):
    if step > steps:
        time.sleep(0.2)
    elif step % 100 == 0:
        time.sleep(0.002)
    worker.report(step, steps=steps + more, loss=5 / math.sqrt(step), lr=1e-3)
    if worker.should_stop():
        break
"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
SENT = """(until) => [...performance.getEntriesByType('navigation'),
  ...performance.getEntriesByType('resource')]
  .filter((each) => new URL(each.name).pathname === '/' || each.name.includes('/page/'))
  .filter((each) => each.startTime <= until)
  .map((each) => each.transferSize)"""


def main() -> None:
    """Print the table."""
    if (why := why_no_browser()) is not None:
        sys.exit(why)
    print(machine())
    with (
        TemporaryDirectory() as work,
        daemon(Path(work) / "state", CONFIG) as (pid, client),
        started_browser() as browser,
    ):
        program = Path(work) / "program.py"
        program.write_text(PROGRAM)
        ended = [_submit(client, program, STEPS, 0) for _ in range(JOBS)]
        _wait_for(client, ended)
        running = _submit(client, program, STEPS, 100_000)
        time.sleep(10)
        process = psutil.Process(pid)
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"{browser.version=}, {JOBS} jobs of {STEPS} steps, load {load}")
        found = [_visit(browser, client) for _ in range(VISITS)]
        for name in found[0]:
            values = [each[name] for each in found]
            middle, ends = statistics.median(values), f"{min(values):,.0f} to {max(values):,.0f}"
            print(f"{name:<40} {middle:,.0f} ({ends})")
        print(f"daemon, no page open                     {_load(process):.2f} % of a core")
        for place in ("#/jobs", f"#/jobs/{running}", "#/machine"):
            context = browser.new_context()
            page = context.new_page()
            page.goto(client.web_link()["url"])
            page.wait_for_selector("#link.live")
            page.evaluate("(place) => { location.hash = place; }", place)
            page.wait_for_timeout(2000)
            print(f"daemon, {place:<32} {_load(process):.2f} % of a core")
            context.close()
        client.cancel(running)
        _wait_for(client, [running])


def _submit(client: DaemonClient, program: Path, steps: int, more: int) -> int:
    command = [sys.executable, str(program), str(steps), str(more)]
    job: dict[str, Any] = {"name": "reports", "device": "cpu", "ranks": 1, "engine": "script"}
    spec = job_from_dict(
        {**job, "script": {"command": command, "directory": str(program.parent)}}, source="job"
    )
    return int(client.submit(spec)["id"])


def _wait_for(client: DaemonClient, jobs: list[int]) -> None:
    while any(client.job(job)["state"] not in TERMINAL for job in jobs):
        time.sleep(0.2)


def _visit(browser: Any, client: DaemonClient) -> dict[str, float]:
    context = browser.new_context()
    page = context.new_page()
    wire = _watch_wire(context, page)
    page.goto(client.web_link()["url"])
    page.wait_for_selector("table.jobs tbody tr")
    page.wait_for_load_state("load")
    now = page.evaluate("() => performance.now()")
    page.wait_for_timeout(1500)
    painted = float(page.evaluate(PAINT))
    first, sent = page.evaluate(SENT, painted), page.evaluate(SENT, 1e9)
    found = {
        "first paint, ms after the request": painted,
        "jobs in the table, ms": float(now),
        "files begun before the first paint": float(len(first)),
        "bytes of them, transferSize": float(sum(first)),
        "files, with those of other views": float(len(sent)),
        "bytes of all, transferSize": float(sum(sent)),
        "requests, with those of the link": float(len(wire)),
        "bytes of them, with their headers": sum(wire.values()),
    }
    context.close()
    return found


def _watch_wire(context: Any, page: Any) -> dict[str, float]:
    """Return the bytes of each response of the page's files, which are counted from now on."""
    debugger, files = context.new_cdp_session(page), set[str]()
    sizes: dict[str, float] = {}

    def note_request(event: Any) -> None:
        path = urlsplit(event["request"]["url"]).path
        if path == "/" or path.startswith(("/page/", "/link/")):
            files.add(event["requestId"])

    def note_end(event: Any) -> None:
        if event["requestId"] in files:
            sizes[event["requestId"]] = float(event["encodedDataLength"])

    debugger.on("Network.requestWillBeSent", note_request)
    debugger.on("Network.loadingFinished", note_end)
    debugger.send("Network.enable")
    return sizes


def _load(process: psutil.Process) -> float:
    before = sum(process.cpu_times()[:2])
    time.sleep(WATCHED_SECONDS)
    return 100 * (sum(process.cpu_times()[:2]) - before) / WATCHED_SECONDS


if __name__ == "__main__":
    main()
