"""The training loss: the cross-entropy of learned tokens, and a router's loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch.nn import functional

from zerotoolsd.trainer.data.collate import collate
from zerotoolsd.trainer.data.example_pools import IGNORED, Example
from zerotoolsd.trainer.data.example_store import Preference
from zerotoolsd.trainer.data.packing import join
from zerotoolsd.trainer.engine.chunked_loss import summed_cross_entropy, takes_targets
from zerotoolsd.trainer.engine.protocol import LossSum, Rewards
from zerotoolsd.trainer.engine.router_balance import added_to, moved_by
from zerotoolsd.trainer.model.segment_attention import is_flash, segments_of
from zerotoolsd.trainer.sequence_parallel.all_to_all import totalled
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


def are_preferences(examples: Sequence[Example]) -> TypeGuard[Sequence[Preference]]:
    """Return whether these are pairs; all examples of a job are, or none."""
    return bool(examples) and isinstance(examples[0], Preference)


def log_probabilities(
    model: Any, examples: Sequence[Example], device: torch.device
) -> torch.Tensor:
    """Return the log-probability of each example's learned tokens, fp32, `[examples]`.

    It is also complete on each of the ranks that have a stretch of them.
    """
    # Answers are never packed.
    whole, lengths = collate(model, examples, device), [example.lengths for example in examples]
    with segments_of(model, lengths), own_stretch(model, *whole) as (arguments, labels):
        logits = model(**arguments, use_cache=False).logits.float()
    each = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    found, stretch = -each.view(labels.shape).sum(dim=1), stretch_of(model)
    return found if stretch is None else totalled(found, stretch.exchange)


def preference_loss(
    model: Any, pairs: Sequence[Preference], device: torch.device, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the sum of the losses of `pairs`, the sums of `Rewards`, `[3]`), of those that count.

    One of the ranks with a stretch of them has their values; the others have 0, and the gradients
    of their stretches. All ranks call it together.
    """
    answers = [*pairs, *(pair.rejected for pair in pairs)]
    found = log_probabilities(model, answers, device).view(2, len(pairs))
    known = [[*pair.reference, float(pair.counts)] for pair in pairs]
    *reference, counts = torch.tensor(known).T.to(device, non_blocking=True)
    rewards = beta * (found - torch.stack(reference))
    losses = -functional.logsigmoid(rewards[0] - rewards[1])
    rewards = rewards.detach()
    right = (rewards[0] > rewards[1]).float()
    sums = torch.stack([(each * counts).sum() for each in (*rewards, right)])
    loss, stretch = (losses * counts).sum(), stretch_of(model)
    if stretch is not None and not stretch.leads:
        return loss - loss.detach(), torch.zeros_like(sums)
    return loss, sums


def summed_preference_loss(
    model: Any, pairs: Sequence[Preference], device: torch.device, beta: float
) -> LossSum:
    """Return the same sums, and how many pairs count. Keeps nothing for a backward pass."""
    with torch.no_grad():
        loss, sums = preference_loss(model, pairs, device, beta)
    stretch = stretch_of(model)
    counted = stretch is None or stretch.leads
    counts = sum(pair.counts for pair in pairs) if counted else 0
    return LossSum(float(loss), counts, Rewards(*sums.tolist()))
