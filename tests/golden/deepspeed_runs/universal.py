"""What one rank runs to judge universal checkpoints: `... .universal RUN ...`.

A run is `CASE@STAGE`. Unmodified DeepSpeed loads `RUN/given` with `load_universal` at that stage
and the world size of this launch. What the engine then holds is gathered into
`RUN/truth.safetensors`, its param groups into `RUN/groups.json`; and it takes another step.
"""

import dataclasses
import json
import sys
import traceback
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from . import truth
from .case import Case
from .cases import CASES
from .judge import GIVEN, TRUTH, engine_of
from .launch import leave
from .rank import allow_fp16_on_cpu

FAILED = "failed.txt"
# Stage 3 has no elastic checkpoints; and DeepSpeed's loader fills vectors in the optimizer's order,
# which is wrong where the engine lays them out in round robin.
NOT_RESUMED = ("elastic_checkpoint", "round_robin_gradients")


def resuming(case: Case, stage: int) -> Case:
    """The case as a run at `stage` that resumes from a universal checkpoint."""
    zero = {key: value for key, value in case.zero.items() if key not in NOT_RESUMED}
    config = {**case.config, "checkpoint": {"load_universal": True}}
    return dataclasses.replace(case, stage=stage, zero=zero, config=config)


def judge(run: str) -> None:
    """Loads, gathers and trains on; collective. Where DeepSpeed raises, why is written down."""
    name, _, stage = run.partition("@")
    engine = engine_of(resuming(CASES[name], int(stage)))
    try:
        path, _ = engine.load_checkpoint(f"{run}/{GIVEN}")
        if path is None:
            raise AssertionError("DeepSpeed found nothing to load")
    except Exception:
        Path(run, FAILED).write_text(traceback.format_exc())
    # Every rank knows the same, so that none waits for one that failed.
    dist.barrier()
    if Path(run, FAILED).exists():
        return
    tensors = truth.gather_tensors(engine)
    if dist.get_rank() == 0:
        groups = truth.groups_of(engine, engine.module.group_names())
        Path(run, "groups.json").write_text(json.dumps(groups))
        save_file(tensors, f"{run}/{TRUTH}")
    engine.backward(engine(engine.global_steps + 1, dist.get_rank()))
    engine.step()
    truth.gather_tensors(engine)


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for run in sys.argv[1:]:
        print("judging", run, flush=True)
        judge(run)
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
