"""Several jobs, one after another, in one start of the ranks: what `rank_runs` is for."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.launching import job, resolved, start
from tests.matrices import FULL
from zerotools.runs import find_job_checkpoints

SCRIPT = Path(__file__).with_name("rank_runs.py")

BLOCKS = ("num_hidden_layers", "n_layer", "num_layers")
"""What configs call the number of blocks."""


@dataclass(frozen=True)
class Runs:
    """What `rank_runs` printed, where its jobs wrote, and the jobs."""

    directory: Path
    report: dict[str, dict[str, Any]]
    jobs: dict[str, dict[str, Any]]

    def of(self, name: str, what: str) -> list[Any]:
        """One field of the outcome of each step."""
        return [outcome[what] for outcome in self.report[name]["outcomes"]]

    def losses(self, name: str) -> list[float]:
        """The loss of each step."""
        return self.of(name, "loss")

    def ended(self, name: str) -> str:
        """A digest of all that it trained."""
        digest: str = self.report[name]["ended"]
        return digest

    def checkpoint(self, name: str, step: int) -> Path:
        """Where a step is saved."""
        return self.directory / name / "out" / find_job_checkpoints.directory_name(step)


def with_blocks(tree: dict[str, Any], count: int) -> dict[str, Any]:
    """The job with `count` blocks where its model has two."""
    config = tree["model"].get("config", {})
    fewer = {key: count for key in BLOCKS if config.get(key) == 2}
    return {**tree, "model": {**tree["model"], "config": {**config, **fewer}}} if fewer else tree


def run_all(
    directory: Path,
    text: Path,
    ranks: int,
    jobs: dict[str, dict[str, Any]],
    *,
    ends: bool | Collection[str] = True,
    as_told: Collection[str] = (),
    asked: Collection[str] = (),
    blocks: int = 1,
) -> Runs:
    """Run `jobs` on `ranks` ranks, in one start of the processes. Unless `ends` is True, all but
    those of `as_told` save once, after `checkpoint.every` steps, and those of `ends` at their ends,
    too: a save takes as long as three steps. "begins" in `asked` is for the state before the first
    step (`begun` and `start`), "evaluates" for the loss of the first batch before it: they take a
    tenth of the time of a job. Models of two blocks have `blocks`: one saves a fifth of the time,
    and what a second one adds is in `test_stages` and `test_deepspeed`."""
    runs = directory / "out"
    runs.mkdir(parents=True)
    read = () if isinstance(ends, bool) else ends
    assert jobs.keys() >= {*read, *as_told}
    once = () if ends is True else jobs.keys() - {*as_told}
    (runs / "saves").write_text(json.dumps({name: name in read for name in once}))
    for name in (*asked, *(("inductor",) if FULL else ())):
        (runs / name).touch()
    full = {name: job(text, **{"ranks": ranks, **changes}) for name, changes in jobs.items()}
    if not FULL:
        full = {name: with_blocks(tree, blocks) for name, tree in full.items()}
    (runs / "runs.json").write_text(
        json.dumps({name: resolved(tree) for name, tree in full.items()})
    )
    engines = {tree.get("engine", "torch") for tree in full.values()}
    attempt = start(directory, job(text, ranks=ranks, engine=min(engines)), script=SCRIPT)
    assert attempt.finish() == [0] * ranks, attempt.log()
    return Runs(runs, json.loads(attempt.log().splitlines()[-1]), full)
