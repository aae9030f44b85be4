"""What training lowers: the cross-entropy of each next token."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from zerotoolsd.trainer.enginetype import Sequences, Summed


def mean_loss(model: Any, sequences: Sequences, device: torch.device) -> torch.Tensor:
    """The mean over the tokens of `sequences` but the first of each."""
    logits, wanted = _predicted(model, sequences, device)
    return functional.cross_entropy(logits, wanted)


def summed_loss(model: Any, sequences: Sequences, device: torch.device) -> Summed:
    """The sum over the same tokens, and their number. Keeps nothing for a backward pass."""
    with torch.no_grad():
        logits, wanted = _predicted(model, sequences, device)
        return Summed(float(functional.cross_entropy(logits, wanted, reduction="sum")), len(wanted))


def _predicted(
    model: Any, sequences: Sequences, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    windows = torch.tensor([list(sequence) for sequence in sequences], dtype=torch.int64)
    windows = windows.to(device, non_blocking=True)
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return logits.float().flatten(0, 1), windows[:, 1:].flatten()
