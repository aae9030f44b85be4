"""The time from launch to the first training step, with a fork server and without.

    python -m benchmarks.queue.warm_start [--runs 7] [--ranks 2]

Two daemons take turns with the same job: one has `[warm_start]` on, the other not. Launch is the
event by which a job is admitted; the step's time is what rank 0 reports. Prints a table, and stops
if the losses of any two runs differ in a bit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.daemon import JOB, daemon, first
from benchmarks.measuring import machine
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict

COLD = '[gpus]\nlocks = ""\n'
WARM = f"{COLD}[warm_start]\nenabled = true\n"
STARTED = {"with": "started warm", "without": None}


def wait_for_end(client: DaemonClient, job_id: int) -> None:
    """Until the job has succeeded."""
    while (state := client.job(job_id)["state"]) != "succeeded":
        if state in ("failed", "cancelled", "held"):
            raise RuntimeError(f"job {job_id} is {state}: {client.job(job_id)['reason']}")
        time.sleep(0.05)


def run(state: Path, client: DaemonClient, job: dict[str, Any]) -> tuple[float, str | None, str]:
    """One job: seconds from launch to the first step, how it was started, its losses."""
    job_id = client.submit(job_from_dict(job, source="benchmark"))["id"]
    wait_for_end(client, job_id)
    run_dir = state / "jobs" / str(job_id) / "attempt-1"
    events = client.explain(job_id)["events"]
    launched = next(event["time"] for event in events if event["kind"] == "admit")
    said = next(event["why"] for event in events if event["kind"] == "started")
    lines = map(json.loads, (run_dir / "progress.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line.get("event") == "step"]
    return first(run_dir, event="step", step=1) - launched, said, json.dumps(losses)


def server(client: DaemonClient) -> dict[str, Any]:
    """The fork server of the daemon, once it is ready."""
    while True:
        for found in client.machine()["warm_start"]["servers"]:
            if found["ready"]:
                return dict(found)
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    # Unbound, so that the event says nothing but how it was started, on any machine.
    job = {**JOB, "ranks": options.ranks, "numa": "off"}
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    losses = set()
    with tempfile.TemporaryDirectory() as work:
        warm, cold = Path(work) / "warm", Path(work) / "cold"
        with daemon(warm, WARM) as (_, warmed), daemon(cold, COLD) as (_, plain):
            _, _, once = run(warm, warmed, job)  # makes the server
            losses.add(once)
            began = time.monotonic()
            held = server(warmed)
            ready = time.monotonic() - began
            for _ in range(options.runs):
                for name, state, client in (("with", warm, warmed), ("without", cold, plain)):
                    took, said, found = run(state, client, job)
                    if said != STARTED[name]:
                        raise RuntimeError(f"{name} a fork server, the job {said}")
                    seconds[name].append(took)
                    losses.add(found)
    if len(losses) != 1:
        raise RuntimeError(f"the losses differ: {losses}")
    print(f"{machine()}; {options.runs} runs in turn, {options.ranks} ranks\n")
    print("| fork server | least s | median s | most s |\n|---|---|---|---|")
    for name, found in seconds.items():
        print(f"| {name} | {min(found):.2f} | {median(found):.2f} | {max(found):.2f} |")
    print(f"\nThe server holds {held['memory_bytes'] / 2**20:.0f} MiB; it was ready {ready:.1f} s")
    print("after the first job. The losses of all runs are the same in every bit.")


if __name__ == "__main__":
    main()
