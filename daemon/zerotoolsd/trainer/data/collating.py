"""Examples of different lengths as tensors that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerotoolsd.trainer.data.sequences import IGNORED, Example


def collate(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(the arguments of `model`, what it is to say, `IGNORED` where nothing).

    Shorter examples are filled up on the right. A causal model needs no mask for that, as nothing
    looks to its right; an encoder does. In a packed sequence the position ids start again with
    each segment, by which transformers keeps them apart in all of its attention implementations.
    """
    inputs = _filled([example.inputs for example in examples], 0, device)
    labels = _filled([example.targets for example in examples], IGNORED, device)
    if not model.config.is_encoder_decoder:
        arguments = {"input_ids": inputs}
        if any(example.segments for example in examples):
            positions = [_positions(example) for example in examples]
            arguments["position_ids"] = _filled(positions, 0, device)
        return arguments, labels
    lengths = torch.tensor([len(example.inputs) for example in examples], device=device)
    mask = torch.arange(inputs.shape[1], device=device) < lengths[:, None]
    said = model.prepare_decoder_input_ids_from_labels(labels=labels)
    return {
        "input_ids": inputs,
        "attention_mask": mask.long(),
        "decoder_input_ids": said,
    }, labels


def _filled(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    filled = [[*row, *[filler] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).to(device, non_blocking=True)


def _positions(example: Example) -> list[int]:
    return [position for length in example.lengths for position in range(length)]
