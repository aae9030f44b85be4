"""What one rank runs to judge checkpoints: `python -m tests.deepspeed_runs.judge CASE ...`.

For each case, unmodified DeepSpeed loads `CASE/given` with the configuration of the case and the
world size of this launch, and no flag that asks it to convert anything. Before that, no weight and
no buffer of the model is what it should be. What the engine then holds is gathered into
`CASE/truth.safetensors`; it saves `CASE/again`, and takes another step.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from . import truth
from .case import Case, deepspeed_config
from .cases import CASES
from .launch import leave
from .learners import forget
from .models import MODELS, Model
from .optimizers import CLIENT_OPTIMIZERS
from .rank import allow_fp16_on_cpu

GIVEN, AGAIN, TRUTH = "given", "again", "truth.safetensors"


def engine_of(case: Case) -> Any:
    """An engine as the case's own run made it."""
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
        config=deepspeed_config(case),
    )
    return engine


def judge(case: Case) -> None:
    """Loads, gathers, saves again and trains on; collective."""
    engine = engine_of(case)
    strict = not any(save.exclude_frozen for save in case.saves)
    path, _ = engine.load_checkpoint(f"{case.name}/{GIVEN}", load_module_strict=strict)
    if path is None:
        raise AssertionError(f"{case.name}: DeepSpeed found nothing to load")
    tensors = truth.gather_tensors(engine)
    if dist.get_rank() == 0:
        save_file(tensors, f"{case.name}/{TRUTH}")
    tag = Path(path).parent.name
    engine.save_checkpoint(f"{case.name}/{AGAIN}", tag=tag, exclude_frozen_parameters=not strict)
    step = engine.global_steps + 1
    engine.backward(engine(step, dist.get_rank()))
    engine.step()
    truth.gather_tensors(engine)


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name in sys.argv[1:]:
        print("judging", name, flush=True)
        judge(CASES[name])
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
