"""DPO: the loss of pairs of a chosen and a rejected answer.

With p the log-probability of an answer, summed over its tokens, and r that of the initial weights:

    reward = beta (p - r)          loss = -log sigmoid(reward of chosen - reward of rejected)

    beta 0.1:  chosen -12 (was -14), rejected -20 (was -15)
               rewards 0.2 and -0.5, loss -log sigmoid(0.7) = 0.403

Source: Rafailov et al. 2023, equation 7; TRL's `loss_type="sigmoid"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch.nn import functional

from zerotoolsd.trainer.data.collating import collate
from zerotoolsd.trainer.data.examplestore import Preference
from zerotoolsd.trainer.data.sequences import IGNORED, Example
from zerotoolsd.trainer.engine.protocol import LossSum, Rewards
from zerotoolsd.trainer.model.segments import segments_of
from zerotoolsd.trainer.sequence_parallel.all_to_all import totalled
from zerotoolsd.trainer.sequence_parallel.split_batch import own_stretch, stretch_of


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
