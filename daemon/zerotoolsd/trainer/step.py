"""One optimizer step: forward and backward over the rank's share, clip, agree, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

from zerotools.jobs.spec import TrainSpec
from zerotoolsd.trainer.failures import Diverged
from zerotoolsd.trainer.group import Group
from zerotoolsd.trainer.schedule import learning_rate
from zerotoolsd.trainer.state import Live


@dataclass(frozen=True)
class Outcome:
    """`loss` is the mean over the tokens of the global batch, `stop` what rank 0 was asked."""

    loss: float
    grad_norm: float
    learning_rate: float
    stop: bool


def train_step(
    live: Live,
    sequences: Sequence[Sequence[int]],
    step: int,
    train: TrainSpec,
    group: Group,
    *,
    stop_asked: Callable[[], bool],
) -> Outcome:
    """Optimizer step `step`, counted from 0, on this rank's `sequences`.

    All ranks have equally many tokens, so the mean of the ranks' means is the mean over the batch;
    the sharding averages the gradients alike. Rank 0 alone looks at
    `stop_asked`, and as late as it can.

    Raises:
        Diverged: loss or gradient is not finite; the weights are as they were.
    """
    micro = train.micro_batch_size or len(sequences)
    pieces = [sequences[first : first + micro] for first in range(0, len(sequences), micro)]
    loss = torch.zeros((), dtype=torch.float32, device=group.device)
    for number, piece in enumerate(pieces):
        live.model.set_requires_gradient_sync(number == len(pieces) - 1)
        part = _token_loss(live.model, piece, group.device) / len(pieces)
        part.backward()
        loss += part.detach()
    norm = _clip(live.model, train.max_grad_norm)
    # The stop request travels with the loss, so that all ranks stop after the same step.
    asked = group.rank.leads and stop_asked()
    total, stops = group.total([float(loss), float(asked)])
    mean, grad_norm = total / group.rank.world_size, float(norm)
    _check_finite(step, mean, grad_norm)
    rate = learning_rate(train, step)
    live.optimizer.step(rate)
    live.model.zero_grad(set_to_none=True)
    return Outcome(mean, grad_norm, rate, stops > 0)


def _token_loss(
    model: Any, sequences: Sequence[Sequence[int]], device: torch.device
) -> torch.Tensor:
    windows = torch.tensor([list(sequence) for sequence in sequences], dtype=torch.int64)
    windows = windows.to(device, non_blocking=True)
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def _clip(model: Any, largest: float) -> torch.Tensor:
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest or math.inf)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _check_finite(step: int, loss: float, grad_norm: float) -> None:
    for name, value in (("loss", loss), ("gradient norm", grad_norm)):
        if not math.isfinite(value):
            raise Diverged(
                f"the {name} of step {step + 1} is {value}: training has diverged; lower "
                "train.learning_rate or lengthen train.warmup_steps, and resume from a checkpoint"
            )
