"""What a change of size costs an elastic job, and whether its losses are those of one run.

    python -m benchmarks.queue.elastic [--steps 600] [--cold]

A daemon with two ranks of the CPU, `[preemption]`, and a fork server (without one: `--cold`). A
small Llama that may have one or two ranks begins with two. A job of higher priority takes one: it
saves and goes on with the other. That job ends, and it grows again. The same job with one rank all
the time is the measure of its losses, and with two all the time of how near they can be. Stops if a
step was done twice, or never.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.daemon import JOB, daemon
from benchmarks.measuring import machine
from benchmarks.queue.warm_start import COLD, WARM, server
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict

CONFIG = """
[limits]
cpu_ranks = 2
[elastic]
after_seconds = 0
gain = 1
change_seconds = 1
[preemption]
enabled = true
after_seconds = 0
"""
ENOUGH = 20
"""Steps between two changes."""
ELASTIC = {"min": 1, "max": 2}


def training(output: Path, steps: int, ranks: object) -> dict[str, Any]:
    """The job file of the small Llama."""
    train = {"steps": steps, "batch_size": 4}
    return {**JOB, "ranks": ranks, "train": train, "output_dir": str(output)}


class Place:
    """A daemon's jobs, and their files in `work`."""

    def __init__(self, work: Path, client: DaemonClient) -> None:
        self.work, self.client = work, client

    def submit(self, tree: Mapping[str, Any], priority: int = 0) -> int:
        """The number of the job."""
        spec = job_from_dict(tree, source="job")
        return int(self.client.submit(spec, terms={"priority": priority})["id"])

    def urgent(self) -> None:
        """A job of higher priority that wants one rank until the file `go` is there."""
        wait = f"until test -e {self.work}/go; do sleep 0.05; done"
        script = {"command": ["/bin/sh", "-c", wait], "directory": "/", "launcher": "plain"}
        tree = {"engine": "script", "device": "cpu", "ranks": 1, "script": script}
        self.submit(tree, priority=5)

    def until(self, job: int, *states: str) -> dict[str, Any]:
        """The job, once it is in one of these states."""
        while (found := self.client.job(job))["state"] not in states:
            if found["state"] == "failed":
                raise SystemExit(f"job {job} failed: {found['reason']}")
            time.sleep(0.02)
        return dict(found)

    def until_step(self, job: int, attempt: int, count: int) -> None:
        """Until that attempt has taken so many steps."""
        while len(self.steps(job, attempt)) < count:
            if self.client.job(job)["state"] == "succeeded":
                raise SystemExit(f"it ended before attempt {attempt} made {count} steps: --steps")
            time.sleep(0.02)

    def steps(self, job: int, attempt: int) -> list[dict[str, Any]]:
        """What the attempt said after each step."""
        path = self.work / "state" / "jobs" / str(job) / f"attempt-{attempt}" / "progress.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in told if each.get("event") == "step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        start = COLD if options.cold else WARM
        with daemon(work / "state", start + CONFIG) as (_, client):
            place = Place(work, client)
            alone = place.submit(training(work / "alone", options.steps, 1))
            place.until(alone, "succeeded")
            both = place.submit(training(work / "both", options.steps, 2))
            place.until(both, "succeeded")
            if not options.cold:
                server(client)
            job = place.submit(training(work / "elastic", options.steps, ELASTIC))
            place.until_step(job, 1, ENOUGH)
            place.urgent()
            place.until_step(job, 2, ENOUGH)
            (work / "go").touch()
            place.until_step(job, 3, ENOUGH)
            report(place, (alone, both), job, place.until(job, "succeeded"))


def report(place: Place, rigid: tuple[int, int], job: int, ended: Mapping[str, Any]) -> None:
    """Print the table."""
    told = [place.steps(job, number) for number in range(1, len(ended["attempts"]) + 1)]
    sizes = [attempt["world_size"] for attempt in ended["attempts"]]
    print(f"{machine()}\n\n| change | after step | seconds between the steps, beside the step |")
    print("|---|---|---|")
    for (first, then), (before, after) in zip(pairwise(sizes), pairwise(told), strict=True):
        took = after[0]["time"] - before[-1]["time"] - after[0]["step_seconds"]
        print(f"| {first} to {then} | {before[-1]['step']} | {took:.2f} |")
    done = [each["step"] for attempt in told for each in attempt]
    alone, both = (_losses(place.steps(each, 1)) for each in rigid)
    if sorted(done) != sorted(alone):
        raise SystemExit(f"{len(done)} steps were told of, {len(set(done))} different ones")
    elastic = _losses([each for attempt in told for each in attempt])
    print(f"\nNo step twice or never. Of all {len(done)} steps the losses are at most")
    print(f"{_apart(elastic, alone):.1e} (relative) from those of one rank all the time; those of")
    print(f"two ranks all the time are {_apart(both, alone):.1e} from these.")


def _losses(steps: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {each["step"]: each["loss"] for each in steps}


def _apart(found: Mapping[int, float], wanted: Mapping[int, float]) -> float:
    return max(abs(found[step] / wanted[step] - 1) for step in wanted)


if __name__ == "__main__":
    main()
