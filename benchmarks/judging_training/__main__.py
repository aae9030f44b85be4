"""`python -m benchmarks.judging_training`: the table of losses, as Markdown; status 1 if one is
further from the plain loop than `TOLERANCE`."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.judging_training import hub, ours, plain
from benchmarks.judging_training.setting import MODELS, STEPS, TASKS, Setting, make

TOLERANCE = 1e-5
"""Relative, of any step's loss: fp32 sums in another order, through the steps before it."""
HEADING = """# Losses against other programs

`./scripts/judge-training`: the same weights, order of examples and schedule (see
`benchmarks/judging_training/setting.py`). `text`: windows of bytes; `examples`: prompts and
responses, of which the responses count. Differences are from the plain loop, of any step.
"""
SHOWN = (1, 10, 20, STEPS)
Losses = Callable[[], list[float]]


def programs(setting: Setting, task: str, work: Path) -> Iterator[tuple[str, Losses]]:
    """All that train `task`, the loop first."""
    yield "plain loop", lambda: plain.losses(setting, task)
    yield "Trainer", lambda: hub.trainer_losses(setting, task)
    if task == "examples":
        yield "TRL SFTTrainer", lambda: hub.sft_losses(setting, task)
    for way in ours.WAYS:
        place = work / way.replace(" ", "-").replace(",", "")
        yield (
            f"zerotools, {way}",
            lambda way=way, place=place: ours.losses(  # type: ignore[misc]
                setting, task, way, place
            ),
        )


def main() -> int:
    """Train all and print the table."""
    torch.set_num_threads(1)
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "trl"))
    print(HEADING)
    print(f"torch {torch.__version__}, {', '.join(versions)}; fp32 on CPUs, {STEPS} steps.\n")
    heads = [f"loss of step {step}" for step in SHOWN]
    print(f"| task | model | program | {' | '.join(heads)} | largest difference, relative |")
    print("|---|---|---|" + "---|" * (len(SHOWN) + 1), flush=True)
    worst = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for task in TASKS:
            for kind in MODELS:
                work = Path(directory) / f"{task}-{kind}"
                worst = max(worst, _compare(make(work, kind), task, kind, work))
    print(f"\nThe largest difference is {worst:.1e}; the tolerance is {TOLERANCE:.0e}.")
    return int(worst > TOLERANCE)


def _compare(setting: Setting, task: str, kind: str, work: Path) -> float:
    wanted: list[float] | None = None
    worst = 0.0
    for name, train in programs(setting, task, work):
        found = train()
        if len(found) != STEPS:
            raise SystemExit(f"{name}: {len(found)} steps of {STEPS} on {task} with {kind}")
        wanted = wanted or found
        far = max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
        worst = max(worst, far)
        cells = (task, kind, name, *(f"{found[step - 1]:.7f}" for step in SHOWN), f"{far:.1e}")
        print(f"| {' | '.join(cells)} |", flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
