"""One rank of a job whose memory is measured: prints the most that its process held.

Run by `benchmarks.memory_accuracy.ranks`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

clock = runpy.run_path(str(Path(__file__).parents[1] / "zero_training" / "clock.py"))

import torch.distributed as dist  # noqa: E402

from zerotoolsd.trainer.rank.group import join  # noqa: E402
from zerotoolsd.trainer.rank.settings import rank_from, read_spec  # noqa: E402


def held(name: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith(f"{name}:"))
    return int(found.split()[1]) << 10


def main() -> None:
    """Train all steps; print the bytes before there is a model, and at most."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir: Path = parser.parse_args().run_dir
    group = join(rank_from(), read_spec(run_dir).device)
    before = held("VmRSS")
    clock["timed"](run_dir, group)
    most: list[int] = group.gathered(held("VmHWM"))
    dist.barrier()
    print(json.dumps({"before": before, "most": max(most)}), flush=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
