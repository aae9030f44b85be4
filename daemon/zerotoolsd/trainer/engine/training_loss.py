"""Computes the training loss: cross-entropy of the learned tokens, or DPO for preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from zerotoolsd.trainer.data.collate import collate, labels_of
from zerotoolsd.trainer.data.example_pools import IGNORED, Example
from zerotoolsd.trainer.data.example_store import Preference
from zerotoolsd.trainer.data.packing import join_examples
from zerotoolsd.trainer.engine.chunked_loss import accepts_targets, summed_cross_entropy
from zerotoolsd.trainer.engine.engine_interface import LossSum, Rewards
from zerotoolsd.trainer.engine.router_balance import router_bias_in, router_loss_in
from zerotoolsd.trainer.model.segment_attention import is_flash, segments_of
from zerotoolsd.trainer.sequence_parallel.all_to_all import sum_over_ranks
from zerotoolsd.trainer.sequence_parallel.split_batch import reading_own_part, sequence_part_of


def training_loss(
    model: Any,
    examples: Sequence[Example],
    device: torch.device,
    *,
    weight: float,
    router_weight: float,
) -> torch.Tensor:
    """Return the training loss of `examples`: cross-entropy and the routers' auxiliary loss.

    It is the summed cross-entropy of the learned tokens times `weight`, plus the auxiliary loss
    times `router_weight`. With sequence ranks, a rank counts only the tokens in its own part of
    each sequence. All ranks call it together.
    """
    examples = _as_attended(model, examples)
    bias, router_loss = router_bias_in(model), router_loss_in(model)
    sequence_part = sequence_part_of(model)
    if bias is not None:
        bias.expect(examples, device, sequence_part)
    output, loss, _ = _output_and_loss(model, examples, device)
    if router_loss is None:
        return loss * weight
    balance = router_loss(output.router_logits, examples, sequence_part)
    return loss * weight + balance * router_weight


def summed_loss(model: Any, examples: Sequence[Example], device: torch.device) -> LossSum:
    """Return the summed cross-entropy of `examples` and the number of learned tokens, without
    gradients.
    """
    with torch.no_grad():
        attended = _as_attended(model, examples)
        _, loss, labels = _output_and_loss(model, attended, device)
        return LossSum(float(loss), int((labels != IGNORED).sum()))


def _output_and_loss(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    whole = collate(model, examples, device)
    lengths = [example.lengths for example in examples]
    with segments_of(model, lengths), reading_own_part(model, *whole) as (arguments, labels):
        if accepts_targets(model):
            rows = _learned_rows(model, examples).to(device, non_blocking=True)
            output = model(**arguments, use_cache=False, targets=labels, rows=rows)
            return output, output.loss, labels
        output = model(**arguments, use_cache=False)
        return output, summed_cross_entropy(output.logits, labels), labels


def _learned_rows(model: Any, examples: Sequence[Example]) -> torch.Tensor:
    """Return the numbers of the learned positions in this rank's part of a batch, int64."""
    # The host knows the labels, and need not wait for the device to count.
    labels, sequence_part = labels_of(examples, torch.device("cpu")), sequence_part_of(model)
    own = labels if sequence_part is None else sequence_part.of(labels, IGNORED)
    return (own.flatten() != IGNORED).nonzero().flatten()


def _as_attended(model: Any, examples: Sequence[Example]) -> Sequence[Example]:
    """Join packed sequences into one sequence, if the model uses a flash_attention package.

    With these packages, transformers finds the segments of packed examples only in a batch of one
    sequence.
    """
    if is_flash(model) and len(examples) > 1 and any(example.segments for example in examples):
        return [join_examples(examples)]
    return examples


def are_preferences(examples: Sequence[Example]) -> TypeGuard[Sequence[Preference]]:
    """Return whether `examples` are preference pairs. A job has only pairs, or no pairs."""
    return bool(examples) and isinstance(examples[0], Preference)


def log_probabilities(
    model: Any, examples: Sequence[Example], device: torch.device
) -> torch.Tensor:
    """Return the log-probability of the learned tokens of each example, fp32, `[examples]`.

    With sequence ranks, each rank gets the sum over all parts of the sequence.
    """
    # Answers are never packed.
    whole, lengths = collate(model, examples, device), [example.lengths for example in examples]
    with segments_of(model, lengths), reading_own_part(model, *whole) as (arguments, labels):
        logits = model(**arguments, use_cache=False).logits.float()
    each = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    found, sequence_part = -each.view(labels.shape).sum(dim=1), sequence_part_of(model)
    return found if sequence_part is None else sum_over_ranks(found, sequence_part.exchange)


def switch_off_dropout(model: nn.Module) -> None:
    """Make the dropout of all layers of `model` 0, as TRL does for DPO: the reference, too, is
    computed without dropout.
    """
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d)):
            module.p = 0.0
        # Functional dropout gets its rate from an attribute, such as `attention_dropout`.
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def preference_loss(
    model: Any, pairs: Sequence[Preference], device: torch.device, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the summed DPO loss of `pairs`, the sums of `Rewards`, `[3]`).

    Let p be the log-probability of an answer, summed over its tokens, and r the same value under
    the initial weights. Then:

        reward = beta (p - r)          loss = -log sigmoid(reward of chosen - reward of rejected)

        beta 0.1:  chosen -12 (was -14), rejected -20 (was -15)
                   rewards 0.2 and -0.5, loss -log sigmoid(0.7) = 0.403

    Pairs without learned tokens do not count. If several sequence ranks share a sequence, one rank
    gets the values, and all other ranks get 0. Each rank has the gradients of its own part. All
    ranks call it together.

    Source: Rafailov et al. 2023, equation 7; TRL's `loss_type="sigmoid"`.
    """
    answers = [*pairs, *(pair.rejected for pair in pairs)]
    found = log_probabilities(model, answers, device).view(2, len(pairs))
    known = [[*pair.reference, float(pair.has_targets)] for pair in pairs]
    *reference, counts = torch.tensor(known).T.to(device, non_blocking=True)
    rewards = beta * (found - torch.stack(reference))
    losses = -functional.logsigmoid(rewards[0] - rewards[1])
    rewards = rewards.detach()
    right = (rewards[0] > rewards[1]).float()
    sums = torch.stack([(each * counts).sum() for each in (*rewards, right)])
    loss, sequence_part = (losses * counts).sum(), sequence_part_of(model)
    if sequence_part is not None and not sequence_part.leads:
        return loss - loss.detach(), torch.zeros_like(sums)
    return loss, sums


def summed_preference_loss(
    model: Any, pairs: Sequence[Preference], device: torch.device, beta: float
) -> LossSum:
    """Return the sums of `preference_loss` and the number of counted pairs, without gradients."""
    with torch.no_grad():
        loss, sums = preference_loss(model, pairs, device, beta)
    sequence_part = sequence_part_of(model)
    counted = sequence_part is None or sequence_part.leads
    counts = sum(pair.has_targets for pair in pairs) if counted else 0
    return LossSum(float(loss), counts, Rewards(*sums.tolist()))
