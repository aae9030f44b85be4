"""The Hugging Face Trainer, and TRL's SFTTrainer, which splits texts into tokens by itself."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from benchmarks.judging_training.setting import (
    BATCH,
    BETAS,
    CLIP,
    DECAY,
    EPS,
    MICRO,
    RATE,
    STEPS,
    TASKS,
    WARMUP,
    Setting,
    filled,
    load_model,
    texts_of,
)

ACCUMULATED = BATCH // MICRO


class _InOrder:
    """What both trainers need to do as the others do: the order, exact losses. The schedule is
    their own."""

    parts: list[float]

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)  # type: ignore[attr-defined]

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """Keep the loss of each micro batch, which is its part of the step's."""
        loss = super().training_step(*arguments, **options)  # type: ignore[misc]
        self.parts.append(float(loss))
        return loss

    def by_step(self) -> list[float]:
        """The loss of each step."""
        return [
            sum(self.parts[at : at + ACCUMULATED]) for at in range(0, len(self.parts), ACCUMULATED)
        ]


class _Trainer(_InOrder, Trainer): ...


def trainer_losses(setting: Setting, task: str) -> list[float]:
    """Of the Trainer, on token ids."""
    rows = TASKS[task](setting)
    with tempfile.TemporaryDirectory() as directory:
        trainer = _Trainer(
            model=load_model(setting),
            args=TrainingArguments(**_arguments(directory), remove_unused_columns=False),
            train_dataset=rows,
            data_collator=filled,
        )
        return _trained(trainer)


def sft_losses(setting: Setting, task: str) -> list[float]:
    """Of TRL's SFTTrainer, on prompts and completions."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    class InOrderSft(_InOrder, SFTTrainer): ...

    rows = [{"prompt": t["prompt"], "completion": t["response"]} for t in texts_of(setting)]
    with tempfile.TemporaryDirectory() as directory:
        trainer = InOrderSft(
            model=load_model(setting),
            args=SFTConfig(**_arguments(directory), gradient_checkpointing=False),
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(setting.model),
        )
        return _trained(trainer)


def _trained(trainer: Any) -> list[float]:
    trainer.parts = []
    with contextlib.redirect_stdout(sys.stderr):  # what it reports of itself
        trainer.train()
    found: list[float] = trainer.by_step()
    return found


def _arguments(directory: str) -> dict[str, Any]:
    return {
        "output_dir": str(Path(directory)),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "lr_scheduler_type": "linear",
        "warmup_steps": WARMUP,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "weight_decay": DECAY,
        "max_grad_norm": CLIP,
        "optim": "adamw_torch",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": STEPS,
    }
