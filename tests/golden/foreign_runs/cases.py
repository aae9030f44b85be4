"""The programs, by the name of their golden case."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from . import with_deepspeed, with_torch, with_trainer
from .setting import EXPERTS, TIED


class Case(NamedTuple):
    """`run` trains, saves below the path that it is given, and returns the losses afterwards."""

    about: str
    ranks: int
    run: Callable[[Path], list[float]]
    changes: Mapping[str, Any] = {}


CASES = {
    **{
        f"deepspeed-z{stage}": Case(
            f"DeepSpeed, stage {stage}, fp32", 2, partial(with_deepspeed.run, stage=stage)
        )
        for stage in range(4)
    },
    "deepspeed-z0-bf16": Case(
        "DeepSpeed, stage 0, bf16", 2, partial(with_deepspeed.run, stage=0, bf16=True)
    ),
    "deepspeed-z2-bf16": Case(
        "DeepSpeed, stage 2, bf16", 2, partial(with_deepspeed.run, stage=2, bf16=True)
    ),
    "deepspeed-universal": Case(
        "DeepSpeed's ds_to_universal of stage 2", 2, with_deepspeed.universal
    ),
    "fsdp2-dcp": Case("fully_shard and torch's DCP, tied embeddings", 2, with_torch.fsdp2, TIED),
    "fsdp2-accelerate": Case(
        "fully_shard, in the directories of accelerate's FSDP2",
        2,
        partial(with_torch.fsdp2, as_accelerate=True),
    ),
    "accelerate-ddp": Case("accelerate's save_state, two processes", 2, with_torch.accelerate_ddp),
    "hf-trainer": Case("the Hugging Face Trainer, one process", 1, with_trainer.run),
    "hf-trainer-experts": Case(
        "the Hugging Face Trainer, a Mixtral", 1, partial(with_trainer.run, **EXPERTS), EXPERTS
    ),
}
