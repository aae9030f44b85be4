"""What one rank runs with Hugging Face's Trainer: `... trainer_continuing DIRECTORY [CHECKPOINT]`.

For each stage, trains in `DIRECTORY/<stage>` with a batch of six rows per step, and saves every
`SAVED_AFTER` steps; `CHECKPOINT` is below that directory, and what training resumes from. What the
engine held when it saved, or when training began, goes to `held.safetensors`, the rest to
`told.json`. There is no dropout, and rows come in the order of the Trainer's own seed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from . import truth
from .case import Case
from .launch import leave
from .learners import forget
from .surroundings import TOKENS, tiny_llama, trainer_config

SAVED_AFTER, LAST, ROWS_PER_STEP = 3, 7, 6
CASES = (
    Case(
        "2", 2, 0, "the Trainer's own AdamW, two groups, its schedule", "fp32", optimizer="client"
    ),
    Case("3", 3, 0, "DeepSpeed's AdamW, tied embeddings", "bf16"),
)


class Counting(Dataset[dict[str, Tensor]]):
    """Ten steps' rows of eight token ids, each row counting by its own stride."""

    def __len__(self) -> int:
        return 10 * ROWS_PER_STEP

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = (torch.arange(8) * (index % 5 + 1) + index) % TOKENS
        return {"input_ids": row, "labels": row.clone()}


class Holding(TrainerCallback):
    """Writes down what the engine holds, at the step of the save: then, or resumed from there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trainer: Any = None
        self.told: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step:
            self.hold(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == SAVED_AFTER and not self.told:
            self.hold(state.global_step)

    def hold(self, step: int) -> None:
        engine = self.trainer.model_wrapped
        tensors = truth.gather_tensors(engine)
        self.told = {"step": step, "engine_step": engine.global_steps, "lr": engine.get_lr()}
        if dist.get_rank() == 0:
            save_file(tensors, self.directory / "held.safetensors")


def carry_out(case: Case, directory: Path, checkpoint: str | None) -> None:
    """Trains to `LAST`; collective."""
    arguments = TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        bf16=case.precision == "bf16",
        max_steps=LAST,
        save_steps=SAVED_AFTER,
        per_device_train_batch_size=ROWS_PER_STEP // dist.get_world_size(),
        learning_rate=0.01,
        weight_decay=0.1,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        deepspeed=trainer_config(case),
    )
    model = tiny_llama(tied=case.stage == 3)
    if checkpoint:
        forget(model)
    holding = Holding(directory)
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[holding])
    holding.trainer = trainer
    trainer.train(resume_from_checkpoint=checkpoint and str(directory / checkpoint))
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    if dist.get_rank() == 0:
        told = {"held": holding.told, "last": trainer.state.global_step, "losses": losses}
        (directory / "told.json").write_text(json.dumps(told))


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    directory, checkpoint = Path(sys.argv[1]), (sys.argv[2:] or [None])[0]
    for case in CASES:
        (directory / case.name).mkdir(parents=True, exist_ok=True)
        carry_out(case, directory / case.name, checkpoint)
        dist.barrier()
    leave()


if __name__ == "__main__":
    main()
