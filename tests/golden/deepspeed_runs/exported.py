"""A rank that saves small models of transformers as programs save them: by DeepSpeed at each stage,
as a DCP, as one file of each rank, and as one file.

    python -m tests.golden.deepspeed_runs.exported KIND:VARIANT:FORM ...

Every model gets a directory KIND-VARIANT with config.json, in it one for each form.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.exported_models import KINDS, config_of, varied


def save(model: nn.Module, form: str, directory: Path) -> None:
    """Save the model in `directory`, or in a file of it."""
    if form.startswith("zero"):
        stage = int(form.removeprefix("zero"))
        trained = [each for each in model.parameters() if each.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(trained),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 10**6,
            },
        )
        engine.save_checkpoint(str(directory))
        engine.destroy()
        return
    if form == "file":
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), directory / "model.pt")
        return
    fully_shard(model)
    state = model.state_dict()
    if form == "dcp":
        dcp.save({"model": state}, checkpoint_id=str(directory))
    else:
        name = f"model_world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"
        torch.save(state, directory / name)


def main(arguments: list[str]) -> None:
    """Save what the arguments name; what cannot be saved is left out, and said."""
    deepspeed.init_distributed("gloo", verbose=False)
    lacking = {}
    for argument in arguments:
        kind, variant, form = argument.split(":")
        place = Path(f"{kind}-{variant}")
        directory = place / form
        directory.mkdir(parents=True, exist_ok=True)
        config = config_of(kind, is_tied=variant == "tied")
        if dist.get_rank() == 0:
            (place / "config.json").write_text(json.dumps(config))
        try:
            model = varied(kind, variant, [*KINDS].index(kind))
            if variant == "lora" and dist.get_rank() == 0:
                model.peft_config["default"].save_pretrained(place)
            save(model, form, directory)
        except Exception as error:
            lacking[argument] = f"{type(error).__name__}: {error!s:.200}"
        dist.barrier()
    if dist.get_rank() == 0:
        Path("lacking.json").write_text(json.dumps(lacking))
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
