"""What training lowers: the cross-entropy of tokens to be predicted, and a router's loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerotoolsd.trainer.data.collating import collate
from zerotoolsd.trainer.data.sequences import IGNORED, Example
from zerotoolsd.trainer.engine.chunked_loss import summed_cross_entropy, takes_targets
from zerotoolsd.trainer.engine.protocol import LossSum
from zerotoolsd.trainer.engine.router_loss import added_to


def training_loss(
    model: Any,
    examples: Sequence[Example],
    device: torch.device,
    *,
    weight: float,
    router_weight: float,
) -> torch.Tensor:
    """The sum over the tokens of `examples` that are to be predicted, `weight` times, and the loss
    of its routers, if it has one, `router_weight` times. All ranks call it together."""
    output, loss, _ = _output_and_loss(model, examples, device)
    router_loss = added_to(model)
    if router_loss is None:
        return loss * weight
    return loss * weight + router_loss(output.router_logits, examples) * router_weight


def summed_loss(model: Any, examples: Sequence[Example], device: torch.device) -> LossSum:
    """The same, and their number. Keeps nothing for a backward pass."""
    with torch.no_grad():
        _, loss, labels = _output_and_loss(model, examples, device)
        return LossSum(float(loss), int((labels != IGNORED).sum()))


def _output_and_loss(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    arguments, labels = collate(model, examples, device)
    if takes_targets(model):
        output = model(**arguments, use_cache=False, targets=labels)
        return output, output.loss, labels
    output = model(**arguments, use_cache=False)
    return output, summed_cross_entropy(output.logits, labels), labels
