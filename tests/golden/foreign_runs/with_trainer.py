"""The Hugging Face Trainer on one process: model.safetensors, optimizer.pt, trainer_state.json."""

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from .setting import (
    AFTER,
    BEFORE,
    BETAS,
    CLIP,
    DECAY,
    EPS,
    LEARNING_RATE,
    WINDOWS,
    loss_of,
    make_model,
    windows,
)


class Windows(Dataset[dict[str, Tensor]]):
    """The windows as examples."""

    def __len__(self) -> int:
        return WINDOWS

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input_ids": windows()[number]}


class OfWindows(Trainer):
    """The Trainer with the loss of the other programs; it keeps what each step came to."""

    losses: list[float]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The mean over all tokens."""
        loss = loss_of(model, inputs["input_ids"])
        self.losses.append(float(loss.detach()))
        return loss


def run(checkpoint: Path, **changes: Any) -> list[float]:
    """Train, save in the middle, train on; the losses of the steps after it. `changes` are of the
    model's config."""
    arguments = TrainingArguments(
        output_dir=str(checkpoint),
        use_cpu=True,
        per_device_train_batch_size=WINDOWS,
        max_steps=BEFORE + AFTER,
        save_steps=BEFORE,
        save_total_limit=None,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=EPS,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        optim="adamw_torch",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    trainer = OfWindows(model=make_model(**changes), args=arguments, train_dataset=Windows())
    trainer.losses = []
    trainer.train()
    for later in checkpoint.iterdir():
        if later.name != f"checkpoint-{BEFORE}":
            shutil.rmtree(later)
    for arguments_file in checkpoint.rglob("training_args.bin"):  # it names this machine
        arguments_file.unlink()
    return trainer.losses[BEFORE:]
