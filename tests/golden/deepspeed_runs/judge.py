"""What one rank runs to judge checkpoints.

    python -m tests.golden.deepspeed_runs.judge MOVES.json

For each move, unmodified DeepSpeed loads `HOME/given` with the configuration of the case, the world
size of this launch, the changes of `zero_optimization` that the move asks for, and no flag that
asks it to convert anything. Before that, no weight and no buffer of the model is what it should be.
What the engine then holds is gathered into `HOME/truth.safetensors`; it saves `HOME/again`, and
takes another step.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from . import truth
from .case import Case, deepspeed_config, with_zero
from .cases import ALL_CASES
from .launch import leave
from .learners import forget
from .models import MODELS, Model
from .optimizers import CLIENT_OPTIMIZERS
from .rank import allow_fp16_on_cpu

GIVEN, AGAIN, TRUTH = "given", "again", "truth.safetensors"
LOSSES = "losses.json"


def engine_of(case: Case, changes: Mapping[str, Any] | None = None) -> Any:
    """An engine as the case's own run made it, but for the changes, and without MiCS."""
    if case.harness == "mics":
        case = replace(case, zero={})
    model: Model = MODELS[case.model]()
    if not any(save.exclude_frozen for save in case.saves):
        forget(model)
    groups = model.groups()
    client = CLIENT_OPTIMIZERS.get(case.optimizer)
    if case.harness == "accelerate":
        client = torch.optim.AdamW
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=None if client else groups,
        optimizer=client(groups, lr=0.01) if client else None,
        config=with_zero(deepspeed_config(case), changes or {}),
    )
    return engine


def judge(case: Case, home: str, changes: Mapping[str, Any]) -> None:
    """Loads, gathers, saves again and trains on; collective."""
    engine = engine_of(case, changes)
    strict = not any(save.exclude_frozen for save in case.saves)
    path, _ = engine.load_checkpoint(f"{home}/{GIVEN}", load_module_strict=strict)
    if path is None:
        raise AssertionError(f"{home}: DeepSpeed found nothing to load")
    tensors = truth.gather_tensors(engine)
    if dist.get_rank() == 0:
        save_file(tensors, f"{home}/{TRUTH}")
    tag = Path(path).parent.name
    engine.save_checkpoint(f"{home}/{AGAIN}", tag=tag, exclude_frozen_parameters=not strict)
    step = engine.global_steps + 1
    engine.backward(engine(step, dist.get_rank()))
    engine.step()
    truth.gather_tensors(engine)


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name, home, changes in json.loads(Path(sys.argv[1]).read_text()):
        print("judging", home, flush=True)
        judge(ALL_CASES[name], home, changes)
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
