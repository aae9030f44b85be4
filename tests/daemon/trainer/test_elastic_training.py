"""A real training that changes its size under a real daemon: the same data and the same losses.

Tolerance: the order of summation, which the steps make larger (benchmarks/results/giving-way.md).
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from harness import forked
from harness.launching import job
from harness.warm_interpreter import interpreter
from tests.daemon.daemons import REAL, Daemon, daemon_in
from tests.daemon.trainer.meshes import check_commands
from tests.daemon.trainer.torch_releases import needs_tensor_ranks
from tests.daemon.waiting import wait_for
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL
from zerotools.runs import find_job_checkpoints

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dear(40, "three starts of a trainer, one of two ranks"),
]
STEPS, NEAR = 160, 1e-3
CONFIG = """
[limits]
cpu_ranks = {}
[gpus]
locks = ""
[preemption]
enabled = true
after_seconds = 0
[elastic]
grow = false
"""


def steps_of(daemon: Daemon, number: int) -> dict[int, list[dict[str, Any]]]:
    """What the attempts of a job said after each step, by attempt."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted((daemon.state / "jobs" / str(number)).glob("attempt-*/progress.jsonl")):
        told = [json.loads(line) for line in path.read_text().splitlines(True) if line[-1] == "\n"]
        attempt = int(path.parent.name.removeprefix("attempt-"))
        found[attempt] = [each for each in told if each.get("event") == "step"]
    return found


def losses_of(out: Path) -> list[tuple[int, float]]:
    """The loss of each step, as the job recorded it; datagrams of steps may be dropped."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def end_of(daemon: Daemon, number: int) -> dict[str, Any]:
    """The job, once it is over, which takes longer than a job of pretended ranks."""
    client = daemon.client
    wait_for(lambda: client.job(number)["state"] in TERMINAL, f"job {number} to end", deadline=180)
    return client.job(number)


@pytest.mark.parametrize(
    "zero",
    [
        # In ./scripts/test `daemon/test_elastic_jobs` has jobs that change their size, and
        # `engine_torch/test_stages` training that goes on with other ranks.
        pytest.param({}, marks=pytest.mark.full),
        pytest.param({"tensor_ranks": 2}, marks=[pytest.mark.full, needs_tensor_ranks]),
        pytest.param({"sequence_ranks": 2}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_one_that_goes_on_with_fewer_ranks_is_the_same_run(
    tmp_path: Path, text: Path, zero: dict[str, int]
) -> None:
    together = prod(zero.values())
    train = {"steps": STEPS, "batch_size": 4, "learning_rate": 1e-4}
    shared = {"train": train, "python": str(tmp_path / "python")}
    rigid = job(text, ranks=1, **shared)
    sizes = {"min": together, "max": 2 * together}
    out = tmp_path / "out"
    elastic = job(text, ranks=sizes, zero={"stage": 3, **zero}, output_dir=str(out), **shared)
    wait = f"until test -e {tmp_path}/go; do sleep 0.05; done"
    script = {"command": ["/bin/sh", "-c", wait], "directory": "/"}
    urgent = {"engine": "script", "device": "cpu", "ranks": 1, "script": script}
    with (
        interpreter(tmp_path / "python", forked.TORCH),
        daemon_in(tmp_path / "state", CONFIG.format(2 * together), REAL) as daemon,
    ):
        client = daemon.start().client
        number = int(client.submit(job_from_dict(elastic, source="job"))["id"])
        wait_for(lambda: steps_of(daemon, number).get(1), "its first step", deadline=120)
        client.submit(job_from_dict(urgent, source="job"), terms={"priority": 5})
        ended = end_of(daemon, number)
        (tmp_path / "go").touch()
        assert ended["state"] == "succeeded", ended["reason"]
        sizes_had = [attempt["world_size"] for attempt in ended["attempts"]]
        assert sizes_had == [2 * together, together]
        check_commands(out / find_job_checkpoints.directory_name(STEPS), together, tmp_path)
        alone = int(client.submit(job_from_dict(rigid, source="job"))["id"])
        assert end_of(daemon, alone)["state"] == "succeeded"
        wanted = losses_of(Path(client.job(alone)["output_dir"]))
        found = losses_of(out)
        assert [step for step, _ in found] == list(range(1, STEPS + 1))
        assert dict(found) == pytest.approx(dict(wanted), rel=NEAR)
        assert found[0][1] == pytest.approx(wanted[0][1], rel=1e-6)
