"""The choice to compute a job's loss in parts or at once."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch

from zerotools.core.errors import Unsupported
from zerotools.core.loss_chunks import LossSize
from zerotools.jobs.tables.data import longest_sequence
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.reading import positions_of
from zerotoolsd.trainer.engine.chunked_loss import ChunkedLoss
from zerotoolsd.trainer.model.tiny_model import small_model

GATHERING_STAGE = 3
TRIED = 12
"""Tokens with which a small model is tried."""
UNBOUNDED = 1 << 17
"""Assumed tokens of a sequence if neither the job nor the model has a limit."""


def loss_size_of(spec: JobSpec, config: Any, longest: int | None = None) -> LossSize:
    """Return the largest input of the loss of `spec`, with a model of `config`.

    `longest` is the most tokens that the model reads of an example, if known.

    Raises:
        Unsupported: the job requires it in parts, and this is impossible.
    """
    train, text = spec.train, config.get_text_config()
    sequences = train.micro_batch_size or train.batch_size // spec.shares
    if spec.eval.has_data:
        sequences = max(sequences, spec.eval.batch_size or 1)
    if spec.data.preferences:
        sequences *= 2  # both answers of a pair
    why = _why_whole(spec, config)
    if why is not None and train.chunked_loss == "on":
        raise Unsupported(f'train.chunked_loss = "on": {why}; set it to "auto" or "off"')
    most = longest_sequence(spec.data, positions_of(config)) or UNBOUNDED
    most = most if longest is None else min(most, longest)
    return LossSize(
        sequences * ceil(most / spec.zero.sequence_ranks),
        text.vocab_size,
        text.hidden_size,
        "off" if why is not None else train.chunked_loss,
    )


def _why_whole(spec: JobSpec, config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "it is for causal models, and this one has an encoder and a decoder"
    if spec.data.preferences:
        return "DPO needs the log-probability of each whole answer of a pair, and so all its logits"
    if spec.engine == "deepspeed" and spec.zero.stage == GATHERING_STAGE:
        return (
            "at stage 3 DeepSpeed gathers the head for each part, and ranks with fewer parts "
            "would not take part"
        )
    return None


def check_cut(spec: JobSpec, config: Any) -> list[str]:
    """Try the loss in parts, if the job uses it, on a small model with the same layers.

    Returns why it will be computed at once, if that is so.

    Raises:
        Unsupported: it cannot be computed in parts, and the job requires it.
    """
    size = loss_size_of(spec, config)
    if not size.is_cut():
        return []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(config)
        return [] if model is None else try_cut(model, size)


def try_cut(model: Any, size: LossSize) -> list[str]:
    """Try it on `model`, as `check_cut` does."""
    notes: list[str] = []
    cut_loss(model.eval(), size, notes.append)
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (1, TRIED))
    model(input_ids=ids, use_cache=False, targets=ids)
    return notes


def cut_loss(model: Any, size: LossSize, say: Callable[[str], None]) -> None:
    """Let `model` compute its loss in parts, if `size` is cut.

    If this is impossible and not an error, `say` gets the reason.
    """
    if size.is_cut():
        ChunkedLoss(model, size, None if size.cut == "on" else say).install()
