"""The generation of text: greedy or by beams, its end tokens, and the length limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.datafiles.example_files import TextExample, as_conversation
from zerotools.jobs.tables.data import SEPARATE
from zerotools.jobs.tables.eval import MAX_NEW_TOKENS
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.encoding.chats import ChatTemplate, special_tokens

GENERATION_CONFIG = "generation_config.json"
_IDS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")


@dataclass(frozen=True)
class Decoding:
    """Generates at most `max_new_tokens`, until one of `ends`, which are not part of the text.
    `filler` is the padding id; `ids` are those that the model's own configuration forces at certain
    positions."""

    max_new_tokens: int
    num_beams: int
    ends: tuple[int, ...]
    filler: int
    ids: Mapping[str, int]


def decoding_of(spec: JobSpec, tokenizer: Any, config: Any, positions: int | None) -> Decoding:
    """Return how a model of `config` that learns from `spec` generates; it has `positions` for it.

    A response ends as in training: by the tokenizer's end of text, or by the end token of its chat
    template. Other ends in a model directory's generation_config.json count too. The rest of that
    file, such as its sampling, is ignored, because evaluations must be comparable.
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
    """Return the limit of generated tokens, for a model with so many `positions` (None: no
    limit)."""
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
    """Return the last special token that the template puts after a response."""
    if spec.data.chat_template == "off" or not getattr(tokenizer, "chat_template", None):
        return None
    chat = as_conversation(TextExample("a chat of two letters", "a", "b"))
    template = ChatTemplate(tokenizer, ends_last=spec.data.truncation != SEPARATE)
    found = template.rendered(chat)
    said = found.text[slice(*found.spans[-1])]
    ids = tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"]
    special = special_tokens(tokenizer)
    return next((number for number in reversed(ids) if number in special), None)
