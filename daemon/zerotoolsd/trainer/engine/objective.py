"""The training loss: the cross-entropy of learned tokens, and a router's loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerotoolsd.trainer.data.collating import collate
from zerotoolsd.trainer.data.packing import join
from zerotoolsd.trainer.data.sequences import IGNORED, Example
from zerotoolsd.trainer.engine.chunked_loss import summed_cross_entropy, takes_targets
from zerotoolsd.trainer.engine.protocol import LossSum
from zerotoolsd.trainer.engine.router_bias import moved_by
from zerotoolsd.trainer.engine.router_loss import added_to
from zerotoolsd.trainer.model.segments import is_flash, segments_of
from zerotoolsd.trainer.sequence_parallel.split_batch import own_stretch, stretch_of


def training_loss(
    model: Any,
    examples: Sequence[Example],
    device: torch.device,
    *,
    weight: float,
    router_weight: float,
) -> torch.Tensor:
    """Return the sum over the learned tokens of `examples`, times `weight`, plus the router's loss.

    The latter, if the model has one, is multiplied by `router_weight`. If ranks have a stretch
    each, only its tokens count. All ranks call it together.
    """
    examples = _as_attended(model, examples)
    bias, router_loss = moved_by(model), added_to(model)
    stretch = stretch_of(model)
    if bias is not None:
        bias.expect(examples, device, stretch)
    output, loss, _ = _output_and_loss(model, examples, device)
    if router_loss is None:
        return loss * weight
    balance = router_loss(output.router_logits, examples, stretch)
    return loss * weight + balance * router_weight


def summed_loss(model: Any, examples: Sequence[Example], device: torch.device) -> LossSum:
    """Return the same sum, and the number of tokens. Keeps nothing for a backward pass."""
    with torch.no_grad():
        attended = _as_attended(model, examples)
        _, loss, labels = _output_and_loss(model, attended, device)
        return LossSum(float(loss), int((labels != IGNORED).sum()))


def _output_and_loss(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    whole = collate(model, examples, device)
    lengths = [example.lengths for example in examples]
    with segments_of(model, lengths), own_stretch(model, *whole) as (arguments, labels):
        if takes_targets(model):
            output = model(**arguments, use_cache=False, targets=labels)
            return output, output.loss, labels
        output = model(**arguments, use_cache=False)
        return output, summed_cross_entropy(output.logits, labels), labels


def _as_attended(model: Any, examples: Sequence[Example]) -> Sequence[Example]:
    """Return packed sequences as one, if transformers separates segments only in a batch of one."""
    if is_flash(model) and len(examples) > 1 and any(example.segments for example in examples):
        return [join(examples)]
    return examples
