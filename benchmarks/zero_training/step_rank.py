"""A rank that times our loop and the bare one in turns; run by `benchmarks.zero_training.steps`.

`plan.json` in the output directory has the job, the number of turns, whether there is a bare loop,
DeepSpeed's JSON where the engine is that, and which clock of `time` is looked at: `process_time` is
for a rank that is alone, beside a loop without FSDP2. Rank 0 prints one JSON object: seconds of
each step by loop, the tokens of a step over all ranks, and what makes an MFU of them, where it is
known.
"""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

clock = runpy.run_path(str(Path(__file__).with_name("clock.py")))
bare = runpy.run_path(str(Path(__file__).with_name("bare.py")))
looks = runpy.run_path(str(Path(__file__).with_name("looks.py")))

import torch.distributed as dist  # noqa: E402

from zerotoolsd.trainer.rank.process_group import join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402

FIRST = 2
"""Steps at the beginning that are not counted: they allocate, and build what is built once."""


def main() -> None:
    """Both loops, turn by turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    spec = read_spec(parser.parse_args().run_dir)
    home = Path(spec.output_dir or "")
    plan = json.loads((home / "plan.json").read_text())
    group = join_group(rank_from(), spec.device)
    look = looks["LOOKS"][plan["look"]]()
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for turn in range(plan["turns"]):
        directory = home / str(turn)
        if group.rank.leads:
            directory.mkdir()
            tree = {**plan["job"], "output_dir": str(directory / "out")}
            (directory / "spec.json").write_text(json.dumps(tree))
        dist.barrier()
        ours = clock["timed"](directory, group, look)
        seconds["ours"] += ours.seconds()[FIRST - 1 :]
        if plan["bare"]:
            seconds["bare"] += _bare(plan, spec, look)[FIRST:]
            clock["let_go"]()
    if group.rank.leads:
        known = ours.utilization
        found = {**seconds, "tokens": ours.tokens, "peak": known and asdict(known)}
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _bare(plan: dict[str, Any], spec: Any, look: Callable[[], float]) -> list[float]:
    steps = plan["job"]["train"]["steps"]
    found: list[float]
    if plan["plain"]:
        found = bare["plain_seconds"](spec, steps, look)
    elif plan["deepspeed"] is not None:
        found = bare["deepspeed_seconds"](spec, plan["deepspeed"], steps)
    else:
        found = bare["fsdp2_seconds"](spec, steps)
    return found


if __name__ == "__main__":
    main()
