"""A rank that tries whether a job trains in a part of its GPU's memory; run by
`benchmarks.zero_training.largest`.

`plan.json` in the output directory has the bytes that torch's allocator may take of the GPU (what
the driver and NCCL take comes on top). Rank 0 prints one JSON object: whether all steps were made,
and the bytes that were taken at most.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

clock = runpy.run_path(str(Path(__file__).with_name("clock.py")))

import torch  # noqa: E402

from zerotoolsd.trainer.rank.process_group import WorldGroup, join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402


def cap(group: WorldGroup, size: int) -> None:
    """Let torch take so many bytes of the rank's GPU; without a GPU there is no cap."""
    if group.device.type == "cuda":
        total = torch.cuda.get_device_properties(group.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), group.device)


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir: Path = parser.parse_args().run_dir
    spec = read_spec(run_dir)
    plan = json.loads((Path(spec.output_dir or "") / "plan.json").read_text())
    group = join_group(rank_from(), spec.device)
    cap(group, plan["bytes"])
    fits = True
    try:
        clock["timed"](run_dir, group)
    except torch.OutOfMemoryError:
        fits = False
    peak = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None
    print(json.dumps({"fits": fits, "peak": peak}), flush=True)
    sys.stderr.flush()
    # After a failure in the middle of a step, the group may not come apart in order.
    os._exit(0)


if __name__ == "__main__":
    main()
