"""What plain PyTorch, and transformers' own rules, make of a model directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer

from benchmarks.architectures.configs import BASE, VOCABULARY, tiny_config

SEQUENCES, LENGTH = 4, 24
LEARNING_RATE, WEIGHT_DECAY, BETAS, MAX_NORM = 1e-3, 0.1, (0.9, 0.95), 1.0
_IDS_FOR_TEXT = VOCABULARY - 16
"""The last ids are those of images."""


def save_model(name: str, directory: Path) -> Any:
    """A model of architecture `name`, no tensor like another, and its directory as transformers
    writes it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(name)).float()
    with torch.no_grad():
        for value in [*model.parameters(), *_persistent(model)]:
            if value.is_floating_point():
                value.add_(torch.randn_like(value), alpha=0.02)
    (model.base_model if name.endswith(BASE) else model).save_pretrained(directory)
    return model.eval()


def _persistent(model: Any) -> Iterator[torch.Tensor]:
    kept = model.state_dict()
    yield from (buffer for name, buffer in model.named_buffers() if name in kept)


def tokens() -> list[int]:
    """Those of `SEQUENCES` windows: a step reads all of them."""
    torch.manual_seed(1)
    found: list[int] = torch.randint(3, _IDS_FOR_TEXT, (SEQUENCES * LENGTH + 1,)).tolist()
    return found


def windows() -> tuple[torch.Tensor, torch.Tensor]:
    """(what the model reads, what it is to say), each of shape [SEQUENCES, LENGTH]."""
    ids = torch.tensor(tokens())
    return ids[:-1].view(SEQUENCES, LENGTH), ids[1:].view(SEQUENCES, LENGTH)


def logits(model: Any) -> torch.Tensor:
    """What `model` says to the windows."""
    with torch.no_grad():
        said: torch.Tensor = model.eval()(input_ids=windows()[0], use_cache=False).logits
    return said


def decayed(model: Any) -> set[str]:
    """The parameters that the Trainer gives a weight decay to."""
    named = Trainer.get_decay_parameter_names(None, model)  # type: ignore[arg-type]
    return {name for name, p in model.named_parameters() if p.requires_grad and name in named}


def losses(directory: Path, steps: int) -> list[float]:
    """The loss of each step of a plain loop on one process, from `directory`."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()
    wanted = decayed(model)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in trained if name in wanted], "weight_decay": WEIGHT_DECAY},
        {"params": [p for name, p in trained if name not in wanted], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=1e-8)
    inputs, targets = windows()
    found = []
    for _ in range(steps):
        said = model(input_ids=inputs, use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(said.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found
