"""The time from an urgent job's submit to its first step, where a running job makes room for it.

    python -m benchmarks.queue.preemption [--runs 5]

A job trains on the only CPU rank of a daemon with `[preemption]`; a job of a higher priority comes.
Both are the two-layer Llama of `benchmarks.daemon`, so nearly all of the time is start-up. What the
daemon says of it (`zerotools explain`) is taken, and the two ends of it are measured here as well.
With a fork server (`[warm_start]`) and without, in turn. Stops if any step was lost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.daemon import JOB, daemon, first
from benchmarks.measuring import machine
from benchmarks.queue.warm_start import COLD, WARM, run, server
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict

ROOM = "[limits]\ncpu_ranks = 1\n[preemption]\nenabled = true\nafter_seconds = 0\n"
LONG: dict[str, Any] = {**JOB, "ranks": 1, "train": {"steps": 1_000_000, "batch_size": 4}}
URGENT: dict[str, Any] = {**JOB, "ranks": 1}
WAYS = ("with", "without")
FIGURES = ("freed", "first step", "went on")


def submit(client: DaemonClient, job: dict[str, Any], priority: int) -> int:
    """The number of a new job."""
    spec = job_from_dict(job, source="benchmark")
    return int(client.submit(spec, terms={"priority": priority})["id"])


def once(state: Path, client: DaemonClient) -> tuple[dict[str, float], int]:
    """One urgent job: seconds since its submit, and the steps that the other one lost."""
    low = submit(client, LONG, 0)
    first(state / "jobs" / str(low) / "attempt-1", event="step", step=5)
    began = time.time()
    high = submit(client, URGENT, 5)
    stepped = first(state / "jobs" / str(high) / "attempt-1", event="step", step=1)
    while not (rooms := client.explain(low)["room"]) or rooms[0]["first_step"] is None:
        time.sleep(0.05)
    (room,) = rooms
    if abs(room["first_step"] - stepped) > 0.01:
        raise RuntimeError(f"the first step was at {stepped}, and explain says {room}")
    second = state / "jobs" / str(low) / "attempt-2"
    went_on = first(second, event="step", step=room["saved_step"] + 1)
    client.cancel(low)
    while client.job(low)["state"] != "cancelled":
        time.sleep(0.05)
    measured = {"freed": room["ended"] - began, "first step": stepped - began}
    return {**measured, "went on": went_on - began}, room["steps_lost"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        warm, cold = Path(work) / "warm", Path(work) / "cold"
        with daemon(warm, WARM + ROOM) as (_, warmed), daemon(cold, COLD + ROOM) as (_, plain):
            run(warm, warmed, URGENT)  # makes the server
            server(warmed)
            for _ in range(options.runs):
                for way, state, client in (("with", warm, warmed), ("without", cold, plain)):
                    found, lost = once(state, client)
                    if lost:
                        raise RuntimeError(f"{lost} steps were lost")
                    for figure, took in found.items():
                        seconds.setdefault((way, figure), []).append(took)
    print(f"{machine()}; {options.runs} runs of each in turn\n")
    print("| fork server | from the submit until | least s | median s | most s |")
    print("|---|---|---|---|---|")
    said = ("the other job has saved and ended", "its first step", "the other's next step")
    for way in WAYS:
        for figure, words in zip(FIGURES, said, strict=True):
            each = seconds[way, figure]
            row = f"{min(each):.2f} | {median(each):.2f} | {max(each):.2f}"
            print(f"| {way} | {words} | {row} |")
    print("\nNo step was lost.")


if __name__ == "__main__":
    main()
