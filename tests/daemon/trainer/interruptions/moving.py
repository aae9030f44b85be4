"""A job that is stopped at random steps, and goes on each time at another stage or number of ranks.
One whose ranks compute sequences or layers together does so every second time, all of them; one
that does both has them share layers alone from then on.

At the step after which it goes on, weights and optimizer state are those that were saved, to the
last bit. The losses after it differ from those of the run that was not moved by the order in which
numbers are added up, and by what follows from that.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.launching import run, start
from tests.daemon.trainer.interruptions.compared import measured
from zerotoolsd.trainer.rank.rank_errors import EXIT_STOPPED

MOVES = ((1, 3), (3, 1), (0, 2), (2, 3))
"""Stage and ranks, after those that a job begins with."""
TOGETHER = ("tensor_ranks", "sequence_ranks")
FAR = {"fp32": 1e-5, "bf16": 5e-4, "fp16": 5e-4}
"""How far a loss may be, relative; in 16 bits, parts of a batch are rounded part by part."""


@dataclass
class Moved:
    """`ways` says where each attempt ran and after which step it ended; `far` is the largest
    relative difference of a loss from that of the run that was not moved."""

    ways: list[str] = field(default_factory=list)
    far: float = 0.0
    most: float = 0.0


def move(tree: Mapping[str, Any], place: Path, chance: random.Random) -> Moved:
    """Run `tree` untouched, and moved along `MOVES`."""
    wanted = measured(run(place / "whole", {**tree, "checkpoint": {}}).run_dir / "out")
    steps, found = tree["train"]["steps"], Moved(most=FAR[tree["train"]["precision"]])
    layouts = [(tree["zero"]["stage"], tree["ranks"]), *MOVES]
    run_dir, part = place / "moved", steps // len(layouts)
    for number, (stage, ranks) in enumerate(layouts):
        zero = {"stage": stage}
        if number == 0:
            zero = tree["zero"]
        elif number % 2 == 0:
            shared = next((key for key in TOGETHER if key in tree["zero"]), None)
            zero |= {shared: ranks} if shared else {}
        moved = {**tree, "ranks": ranks, "zero": zero}
        attempt = start(run_dir, moved)
        last = number == len(layouts) - 1
        if not last:
            attempt.mailbox.wait_for_count("step", chance.randint(1, part))
            (run_dir / "stop").write_text("cancel")
        statuses = attempt.finish()
        (run_dir / "stop").unlink(missing_ok=True)
        assert set(statuses) <= ({0} if last else {0, EXIT_STOPPED}), attempt.log()
        reached = max(attempt.losses())
        found.ways.append(f"stage {stage} on {ranks} to {reached}")
        if reached == steps:
            break
    losses = {step: value for (step, name), value in wanted.items() if name == "loss"}
    ended = {step: v for (step, name), v in measured(run_dir / "out").items() if name == "loss"}
    assert ended.keys() == losses.keys(), f"{len(ended)} steps of {len(losses)}"
    found.far = max(abs(ended[step] - loss) / loss for step, loss in losses.items())
    return found
