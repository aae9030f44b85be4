"""A rank that times our loop and the bare one in turns; run by `benchmarks.zero_steps`.

`plan.json` in the output directory has the job, the number of steps and of turns, and DeepSpeed's
JSON where the engine is that. Rank 0 prints one JSON object: seconds of each step, by loop.
"""

from __future__ import annotations

import argparse
import json
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()
bare = runpy.run_path(str(Path(__file__).with_name("zero_bare.py")))

import torch.distributed as dist  # noqa: E402

from zerotoolsd.trainer.enginetype import Outcome  # noqa: E402
from zerotoolsd.trainer.group import Group, join  # noqa: E402
from zerotoolsd.trainer.notify import Notifier  # noqa: E402
from zerotoolsd.trainer.phases import Phases  # noqa: E402
from zerotoolsd.trainer.reporting import Reporter  # noqa: E402
from zerotoolsd.trainer.session import prepare  # noqa: E402
from zerotoolsd.trainer.settings import rank_from, read_spec  # noqa: E402

FIRST = 2
"""Steps at the beginning that are not counted: they allocate, and build what is built once."""


class Clock(Reporter):
    """A reporter that notes when each step was over, all that belongs to it included."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ends: list[float] = []

    def stepped(self, step: int, outcome: Outcome, tokens: int, seconds: float) -> None:
        """Report it as ever, then look at the clock."""
        super().stepped(step, outcome, tokens, seconds)
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """From the end of each step to that of the next."""
        return [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]


def ours(run_dir: Path, group: Group) -> list[float]:
    """Seconds of the steps of the job in `run_dir`, but the first."""
    spec = read_spec(run_dir)
    clock = Clock(group.rank, Notifier(None, group.rank.number), steps=spec.train.total_steps)
    prepare(spec, run_dir, group, clock, Phases(time.monotonic())).train()
    return clock.seconds()[FIRST - 1 :]


def main() -> None:
    """Both loops, turn by turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir: Path = parser.parse_args().run_dir
    spec = read_spec(run_dir)
    home = Path(spec.output_dir or "")
    plan = json.loads((home / "plan.json").read_text())
    group = join(rank_from(), spec.device)
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for turn in range(plan["turns"]):
        directory = home / str(turn)
        if group.rank.leads:
            directory.mkdir()
            tree = {**plan["job"], "output_dir": str(directory / "out")}
            (directory / "spec.json").write_text(json.dumps(tree))
        dist.barrier()
        seconds["ours"] += ours(directory, group)
        if plan["bare"]:
            seconds["bare"] += _bare(plan, spec)[FIRST:]
    if group.rank.leads:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


def _bare(plan: dict[str, Any], spec: Any) -> list[float]:
    steps = plan["job"]["train"]["steps"]
    if plan["deepspeed"] is not None:
        timed: Callable[..., list[float]] = bare["deepspeed_seconds"]
        return timed(spec, plan["deepspeed"], steps)
    fsdp2: Callable[..., list[float]] = bare["fsdp2_seconds"]
    return fsdp2(spec, steps)


if __name__ == "__main__":
    main()
