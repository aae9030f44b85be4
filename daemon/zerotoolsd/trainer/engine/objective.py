"""What training lowers: the cross-entropy of each token that is to be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerotoolsd.trainer.data.collating import collate
from zerotoolsd.trainer.data.sequences import IGNORED, Example
from zerotoolsd.trainer.engine.chunked_loss import summed_cross_entropy, takes_targets
from zerotoolsd.trainer.engine.protocol import LossSum


def token_loss(model: Any, examples: Sequence[Example], device: torch.device) -> torch.Tensor:
    """The sum over the tokens of `examples` that are to be predicted."""
    return _loss_and_labels(model, examples, device)[0]


def summed_loss(model: Any, examples: Sequence[Example], device: torch.device) -> LossSum:
    """The same, and their number. Keeps nothing for a backward pass."""
    with torch.no_grad():
        loss, labels = _loss_and_labels(model, examples, device)
        return LossSum(float(loss), int((labels != IGNORED).sum()))


def _loss_and_labels(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    arguments, labels = collate(model, examples, device)
    if takes_targets(model):
        return model(**arguments, use_cache=False, targets=labels).loss, labels
    logits = model(**arguments, use_cache=False).logits
    return summed_cross_entropy(logits, labels), labels
