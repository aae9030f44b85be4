"""Generates text after prompts, with Hugging Face's `generate`: greedy or with beams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from zerotools.jobs.datafiles.examples_and_documents import TextExample, as_conversation
from zerotools.jobs.jobfile_tables.data import SEPARATE
from zerotools.jobs.jobfile_tables.eval import MAX_NEW_TOKENS
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.data.encoding.chat_template import ChatTemplate, special_tokens
from zerotoolsd.trainer.data.example_pools import IGNORED, Example

GENERATION_CONFIG = "generation_config.json"
_IDS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")


@dataclass(frozen=True)
class Decoding:
    """The settings for text generation.

    A text has at most `max_new_tokens` tokens. It ends before one of the ids `ends`. `num_beams`
    is 1 for greedy search. `filler` is the padding id. `ids` are ids that the model's configuration
    forces at certain positions, keyed by the name of their option.
    """

    max_new_tokens: int
    num_beams: int
    ends: tuple[int, ...]
    filler: int
    ids: Mapping[str, int]


def make_decoding(spec: JobSpec, tokenizer: Any, config: Any, positions: int | None) -> Decoding:
    """Return the settings for text generation with the model of `spec`.

    `positions` is the model's number of positions (None: no limit). A response ends as in training:
    with the tokenizer's end-of-text token, or with the end token of its chat template. The end
    tokens in the generation_config.json of the model's directory are used too. The rest of that
    file, such as its sampling, is ignored, so that evaluations can be compared.
    """
    own = _generation_config(spec)
    ends = {tokenizer.eos_token_id, _end_of_chat(spec, tokenizer)}
    if spec.data.tokenizer is None:  # else the ids of the model's directory mean other tokens
        listed = own.get("eos_token_id")
        ends |= set(listed) if isinstance(listed, list) else {listed}
    known = sorted(end for end in ends if isinstance(end, int))
    values = {name: own.get(name, getattr(config, name, None)) for name in _IDS}
    filler = tokenizer.pad_token_id
    return Decoding(
        max_new_tokens=_most(spec, positions),
        num_beams=spec.eval.num_beams,
        ends=tuple(known),
        filler=(known[0] if known else 0) if filler is None else filler,
        ids={name: value for name, value in values.items() if isinstance(value, int)},
    )


def _most(spec: JobSpec, positions: int | None) -> int:
    """Return the largest number of tokens that a text may have, for a model with `positions`
    positions (None: no limit).
    """
    if spec.eval.max_new_tokens is not None:
        return spec.eval.max_new_tokens
    if spec.data.truncation == SEPARATE and spec.data.max_target_length is not None:
        return spec.data.max_target_length  # as it was before there was a default
    return MAX_NEW_TOKENS if positions is None else min(MAX_NEW_TOKENS, max(1, positions // 2))


def _generation_config(spec: JobSpec) -> dict[str, Any]:
    if spec.model.path is None:
        return {}
    try:
        found = json.loads((Path(spec.model.path) / GENERATION_CONFIG).read_bytes())
    except (OSError, ValueError):  # a model needs none
        return {}
    return found if isinstance(found, dict) else {}


def _end_of_chat(spec: JobSpec, tokenizer: Any) -> int | None:
    """Return the last special token that the chat template puts after a response.

    Returns None if the template puts no special token there, or if no template is used.
    """
    if spec.data.chat_template == "off" or not getattr(tokenizer, "chat_template", None):
        return None
    chat = as_conversation(TextExample("a chat of two letters", "a", "b"))
    template = ChatTemplate(tokenizer, ends_last=spec.data.truncation != SEPARATE)
    found = template.rendered(chat)
    said = found.text[slice(*found.spans[-1])]
    ids = tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"]
    special = special_tokens(tokenizer)
    return next((number for number in reversed(ids) if number in special), None)


Ids = list[int]


def split_prompt(example: Example, *, encoder_decoder: bool) -> tuple[Ids, Ids]:
    """Divide an example into (the ids of its prompt, the ids of its response).

    The response of a conversation is its last answer.
    """
    inputs, targets = np.asarray(example.inputs), np.asarray(example.targets)
    silent = np.flatnonzero(targets == IGNORED)
    # The last token of the prompt is the one after which the last response begins.
    begin = int(silent[-1]) + 1 if len(silent) else 0
    asked = inputs if encoder_decoder else inputs[: begin + 1]
    return asked.tolist(), targets[begin:].tolist()


def generate(
    model: Any, prompts: Sequence[Ids], decoding: Decoding, device: torch.device
) -> list[Ids]:
    """Return the text that `model` generates after each prompt, as ids, without the end token.

    All ranks call it together. Every rank runs as many forward passes as the rank with the longest
    text, because each pass gathers weights from all ranks. Compiled blocks run uncompiled, because
    the length changes with each token.
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
    """Return (padded ids, mask) as tensors.

    With `left`, as for a causal model, the padding is on the left.
    """
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
