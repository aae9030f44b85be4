"""Makes tensors for a model from the examples of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.example_pools import IGNORED, Example, Ids


def collate(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return (the arguments of a call of `model`, the labels).

    Tokens that are not learned have the label `IGNORED`.

    Shorter examples are padded on the right. A causal model needs no mask for the padding, because
    no token sees tokens to its right; an encoder needs a mask. In a packed sequence the position
    ids restart with each segment. From the position ids, all attention implementations of
    transformers detect the segments.
    """
    inputs = _filled([example.inputs for example in examples], 0, device)
    labels = labels_of(examples, device)
    if not model.config.is_encoder_decoder:
        arguments = {"input_ids": inputs}
        if any(example.segments for example in examples):
            positions = [_positions(example) for example in examples]
            arguments["position_ids"] = _filled(positions, 0, device)
        return arguments, labels
    lengths = torch.tensor([len(example.inputs) for example in examples], device=device)
    mask = torch.arange(inputs.shape[1], device=device) < lengths[:, None]
    said = decoder_inputs(model, labels)
    return {
        "input_ids": inputs,
        "attention_mask": mask.long(),
        "decoder_input_ids": said,
    }, labels


def labels_of(examples: Sequence[Example], device: torch.device) -> torch.Tensor:
    """Return the labels of `examples`, int64 `[batch, length]`; see `collate`."""
    return _filled([example.targets for example in examples], IGNORED, device)


def decoder_inputs(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the input ids of the decoder for `labels`.

    Both are `[batch, length]`.

    The inputs are the labels, shifted to the right by one. The model's own method makes them, if
    the model has one. Otherwise the first input is `decoder_start_token_id`.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        shifted: torch.Tensor = own(labels=labels)
        return shifted
    config = model.config
    before = labels.roll(1, dims=1)
    before[:, 0] = config.decoder_start_token_id
    return before.masked_fill(before == IGNORED, config.pad_token_id)


def check_decoder_start(model: Any) -> None:
    """Check that the config of an encoder-decoder says which token the decoder gets first.

    Raises:
        BadRequest: the config has no decoder_start_token_id or no pad_token_id.
    """
    if not model.config.is_encoder_decoder:
        return
    try:
        decoder_inputs(model, torch.tensor([[1, IGNORED]]))
    except (ValueError, TypeError, AttributeError):  # for a token id that is None, or missing
        names = ("decoder_start_token_id", "pad_token_id")
        missing = [name for name in names if getattr(model.config, name, None) is None]
        if not missing:
            raise
        raise BadRequest(
            f"the config of the {model.config.model_type} model lacks {' and '.join(missing)}, "
            "which its decoder needs as the first token and for padding; add what is missing "
            "to the config"
        ) from None


def _filled(rows: Sequence[Ids | Sequence[int]], filler: int, device: torch.device) -> torch.Tensor:
    filled = np.full((len(rows), max(len(row) for row in rows)), filler, np.int64)
    for line, row in zip(filled, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(filled).to(device, non_blocking=True)


def _positions(example: Example) -> Ids:
    return np.concatenate([np.arange(length) for length in example.lengths])
