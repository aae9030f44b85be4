"""Jobs of zerotools on the same model and data: stages, numbers of ranks, the loss in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.judging_training.setting import (
    BATCH,
    BETAS,
    CLIP,
    DECAY,
    EPS,
    MICRO,
    RATE,
    SEED,
    STEPS,
    WARMUP,
    WINDOW,
    Setting,
)
from harness.launching import run

WAYS: dict[str, dict[str, Any]] = {
    "1 rank, stage 0": {"ranks": 1, "zero": {"stage": 0}},
    "2 ranks, stage 3": {"ranks": 2, "zero": {"stage": 3}},
    "2 ranks, stage 3, loss in parts": {
        "ranks": 2,
        "zero": {"stage": 3},
        "train": {"chunked_loss": "on", "activation_checkpointing": True},
    },
}


def losses(setting: Setting, task: str, way: str, work: Path) -> list[float]:
    """The loss of each step of a job."""
    run(work, _job(setting, task, WAYS[way]))
    lines = (work / "out" / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def _job(setting: Setting, task: str, way: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"text": [str(setting.text)], "sequence_length": WINDOW}
    if task == "examples":
        data = {"examples": [str(setting.examples)]}
    train = {
        "steps": STEPS,
        "batch_size": BATCH,
        "micro_batch_size": MICRO,
        "precision": "fp32",
        "learning_rate": RATE,
        "warmup_steps": WARMUP,
        "schedule": "linear",
        "weight_decay": DECAY,
        "betas": list(BETAS),
        "eps": EPS,
        "max_grad_norm": CLIP,
    }
    return {
        "device": "cpu",
        "seed": SEED,
        "model": {"path": str(setting.model)},
        "data": data,
        **way,
        "train": train | way.get("train", {}),
    }
