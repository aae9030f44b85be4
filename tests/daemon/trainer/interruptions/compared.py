"""What a run that was interrupted has in common with one that nobody touched: every number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.launching import run
from tests.daemon.trainer.tensors import digest
from zerotools.io.telemetry.step_metrics_files import METRICS
from zerotools.runs import find_job_checkpoints

COMPARED = ("loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "eval_loss")
"""What of the lines of metrics.jsonl must be the same to the last bit."""
HOWS = ("cancel", "SIGTERM", "SIGKILL")
Lines = Mapping[tuple[int, str], Any]


@dataclass
class Interrupted:
    """The output of a run of `steps` beside that of one that was not touched.

    `ends` say how each attempt ended, after which step, and after which the next one began; `wrong`
    what differs.
    """

    output: Path
    untouched: Path
    steps: int
    ends: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def compare(self) -> None:
        """Compare the steps that are there now; the next attempt may write over some of them."""
        wanted = measured(self.untouched)
        for (step, name), value in measured(self.output).items():
            if value != wanted.get((step, name)):
                self.wrong.append(
                    f"{name} of step {step} is {value!r}, not {wanted.get((step, name))!r}"
                )

    def compare_ends(self) -> None:
        """Compare all steps, and what the last one left."""
        self.compare()
        lost = measured(self.output).keys() ^ measured(self.untouched).keys()
        if lost:
            self.wrong.append(f"{len(lost)} numbers are in one of the runs alone")
        name = find_job_checkpoints.directory_name(self.steps)
        find_job_checkpoints.verify_checkpoint_files(self.output / name)
        if digest(self.output / name) != digest(self.untouched / name):
            self.wrong.append("weights or optimizer state differ")


def begin(tree: Mapping[str, Any], place: Path) -> Interrupted:
    """Run `tree` untouched, saved at its end alone."""
    whole = run(place / "whole", {**tree, "checkpoint": {}})
    return Interrupted(place / "interrupted", whole.run_dir / "out", tree["train"]["steps"])


def measured(output: Path) -> Lines:
    """What is compared of the steps in an output directory, by step and name."""
    path = output / METRICS
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    trees = [json.loads(line) for line in lines if line.endswith("\n")]
    return {(tree["step"], name): tree[name] for tree in trees for name in COMPARED if name in tree}


def last_step(output: Path) -> int:
    """The last step that has a line."""
    return max((step for step, _ in measured(output)), default=0)
