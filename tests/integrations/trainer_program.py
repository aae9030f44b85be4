"""A tiny Llama under transformers' Trainer: `trainer_program.py WORD...`

hold=N     after step N, rank 0 waits for the stop; not in a run that resumes
ask        ranks agree after every step, and not once a second
alone      rank 0 alone has the callback
late       rank 1 saves its random state a second after the others
trl        a subclass that logs as TRL's trainers do
KEY=VALUE  of TrainingArguments, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from zerotools import worker
from zerotools.integrations import agree_between_ranks
from zerotools.integrations.transformers import ZerotoolsCallback

RANK = int(os.environ.get("RANK", "0"))


class Hold(TrainerCallback):
    """Waits after a step until the job is asked to stop."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            Path("holding").touch()
            while not (Path(os.environ["ZEROTOOLS_RUN_DIR"]) / "stop").exists():
                time.sleep(0.005)


class LateTrainer(Trainer):
    """Writes the last file of rank 1 when rank 0 is through with its own."""

    def _save_rng_state(self, output_dir: str) -> None:
        if RANK == 1:
            while not Path(output_dir, "trainer_state.json").exists():
                time.sleep(0.005)
            time.sleep(1.0)
        super()._save_rng_state(output_dir)


class LoggingTrainer(Trainer):
    """Logs rewards and tokens under the names of TRL."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {"rewards/margins": 0.5, "num_tokens": 64.0 * self.state.global_step}
        super().log(logs, start_time)


def main(words: list[str]) -> None:
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    hold = int(settings.pop("hold", "0"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 64, (32, 8), generator=generator)
    data = [{"input_ids": row, "labels": row} for row in rows]
    callbacks: list[Any] = [ZerotoolsCallback()] if RANK == 0 or "alone" not in words else []
    if hold and worker.resume_from() is None and RANK == 0:
        callbacks.insert(0, Hold(hold))
    if "ask" in words:
        agree_between_ranks.ASK_SECONDS = 0.0
    if "alone" in words:
        agree_between_ranks.JOIN_SECONDS = 0.2
    kind = LateTrainer if "late" in words else LoggingTrainer if "trl" in words else Trainer
    trainer = kind(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir="output",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **{
                "per_device_train_batch_size": 2,
                "logging_steps": 1,
                "max_steps": 6,
                "save_strategy": "no",
                "learning_rate": 0.01,
            }
            | {name: json.loads(value) for name, value in settings.items()},
        ),
        train_dataset=data,
        eval_dataset=data[:4],
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=worker.resume_from())


main(sys.argv[1:])
