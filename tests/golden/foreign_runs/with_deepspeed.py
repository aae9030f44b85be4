"""DeepSpeed's own loop: stages 0 to 3, in fp32 and bf16."""

import argparse
import shutil
from pathlib import Path

import deepspeed
import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal

from .setting import (
    AFTER,
    BEFORE,
    BETAS,
    CLIP,
    EPS,
    LEARNING_RATE,
    WINDOWS,
    groups,
    loss_of,
    make_model,
    share,
)


def run(checkpoint: Path, *, stage: int, bf16: bool = False) -> list[float]:
    """Train, save below `checkpoint`, train on; the losses of the steps after it."""
    model = make_model()
    config = {
        "train_batch_size": WINDOWS,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": bf16},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "torch_adam": True},
        },
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups(model), config=config)
    losses = []
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            engine.save_checkpoint(str(checkpoint))
        losses.append(_step(engine))
    return losses[BEFORE:]


def _step(engine: deepspeed.DeepSpeedEngine) -> float:
    loss = loss_of(engine, share(dist.get_rank(), dist.get_world_size()))
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone().float()
    dist.all_reduce(mean, dist.ReduceOp.SUM)
    return float(mean) / dist.get_world_size()


def universal(checkpoint: Path) -> list[float]:
    """Of ZeRO-2, converted by DeepSpeed's own ds_to_universal."""
    saved = Path("saved")
    losses = run(saved, stage=2)
    if dist.get_rank() == 0:
        convert(saved / f"global_step{BEFORE}", checkpoint)
        shutil.rmtree(saved)
    dist.barrier()
    return losses


def convert(source: Path, destination: Path) -> None:
    """What DeepSpeed's command does, in this process."""
    arguments = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(destination),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    ds_to_universal.main(arguments)
