"""Prompts through Hugging Face's `generate`. All ranks call it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from zerotoolsd.trainer.data.sequences import IGNORED, Example
from zerotoolsd.trainer.engine.decoding import Decoding

Ids = list[int]


def split(example: Example, *, encoder_decoder: bool) -> tuple[Ids, Ids]:
    """Return the ids of an example's prompt, and of its response: for a conversation the last
    one."""
    inputs, targets = np.asarray(example.inputs), np.asarray(example.targets)
    silent = np.flatnonzero(targets == IGNORED)
    # The last token of the prompt is the one after which the last response begins.
    begin = int(silent[-1]) + 1 if len(silent) else 0
    asked = inputs if encoder_decoder else inputs[: begin + 1]
    return asked.tolist(), targets[begin:].tolist()


def generate(
    model: Any, prompts: Sequence[Ids], decoding: Decoding, device: torch.device
) -> list[Ids]:
    """Return the text of `model` after each of `prompts`, without the end.

    Every rank runs as many forward passes as the one with the longest text, because all ranks
    gather the shards in each. Compiled blocks run uncompiled, because a text has another length at
    every token.
    """
    asked = [prompt or [decoding.filler] for prompt in prompts]  # it reads a token at least
    ids, mask = _filled(asked, decoding.filler, left=not model.config.is_encoder_decoder)
    config = _config(decoding)
    # Otherwise the model's own generation config would add its values for keys missing in `config`.
    model.generation_config = config
    with torch.compiler.set_stance("force_eager"):
        found = model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            generation_config=config,
            synced_gpus=torch.distributed.get_world_size() > 1,
        )
    # An encoder-decoder repeats its first token, a causal model the prompts.
    begin = 1 if model.config.is_encoder_decoder else ids.shape[1]
    return [_until(row[begin:], decoding.ends) for row in found.tolist()]


def _config(decoding: Decoding) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        use_cache=True,
        num_beams=decoding.num_beams,
        max_new_tokens=decoding.max_new_tokens,
        eos_token_id=list(decoding.ends) or None,
        pad_token_id=decoding.filler,
        **decoding.ids,
    )


def _filled(
    prompts: Sequence[Ids], filler: int, *, left: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (padded ids, mask); the prompts of a causal model must end together."""
    longest = max(len(prompt) for prompt in prompts)
    rows, masks = [], []
    for prompt in prompts:
        missing = longest - len(prompt)
        fill, none, some = [filler] * missing, [0] * missing, [1] * len(prompt)
        rows.append([*fill, *prompt] if left else [*prompt, *fill])
        masks.append([*none, *some] if left else [*some, *none])
    return torch.tensor(rows), torch.tensor(masks)


def _until(ids: Ids, ends: Sequence[int]) -> Ids:
    return ids[: next((at for at, token in enumerate(ids) if token in ends), len(ids))]
