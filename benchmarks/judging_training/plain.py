"""A training loop by hand: forward, backward, clip, AdamW, the rate of each step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.judging_training.setting import (
    BATCH,
    BETAS,
    CLIP,
    DECAY,
    EPS,
    IGNORED,
    RATE,
    STEPS,
    TASKS,
    Setting,
    filled,
    load_model,
    rate_factor,
)


def losses(setting: Setting, task: str) -> list[float]:
    """The loss of each step: the mean over the tokens of its batch."""
    model, rows = load_model(setting), TASKS[task](setting)
    optimizer = torch.optim.AdamW(_groups(model), lr=RATE, betas=BETAS, eps=EPS)
    found = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate_factor(step)
        batch = filled(rows[step * BATCH : (step + 1) * BATCH])
        labels = batch.pop("labels")[:, 1:]
        logits = model(**batch).logits[:, :-1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def _groups(model: Any) -> list[dict[str, Any]]:
    """Biases and norms do not decay."""
    named = dict(model.named_parameters())
    still = [p for name, p in named.items() if "bias" in name or "norm" in name or ".ln_" in name]
    ids = {id(parameter) for parameter in still}
    decayed = [parameter for parameter in named.values() if id(parameter) not in ids]
    return [
        {"params": decayed, "weight_decay": DECAY},
        {"params": still, "weight_decay": 0.0},
    ]
