"""How a model is asked to go on: greedily or by beams, until which tokens, and for how many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.jobs.datafiles.example_files import TextExample
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.encoding import ChatEncoder, make_encoder

GENERATION_CONFIG = "generation_config.json"
_IDS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
_LONG = 1 << 20
"""More tokens than a chat's template makes of two letters."""


@dataclass(frozen=True)
class Decoding:
    """`max_new_tokens` at most, until one of `ends`, which are not part of the text. `filler` is
    the id in the place of no token; `ids` are those that the model's own configuration wants at
    certain places."""

    max_new_tokens: int
    num_beams: int
    ends: tuple[int, ...]
    filler: int
    ids: Mapping[str, int]


def decoding_of(spec: JobSpec, tokenizer: Any, config: Any) -> Decoding:
    """How a model of `config` that learns from `spec` ends its text.

    A response ends as in training: by the tokenizer's end of text, or by what its chat template
    puts there. What else a model directory's generation_config.json names as an end counts too. The
    rest of that file, such as how to sample, does not: evaluations are to be comparable.
    """
    own = _generation_config(spec)
    ends = {tokenizer.eos_token_id, _end_of_chat(spec, tokenizer, config)}
    if spec.data.tokenizer is None:  # else the ids of the model's directory mean other tokens
        listed = own.get("eos_token_id")
        ends |= set(listed) if isinstance(listed, list) else {listed}
    known = sorted(end for end in ends if isinstance(end, int))
    values = {name: own.get(name, getattr(config, name, None)) for name in _IDS}
    filler = tokenizer.pad_token_id
    return Decoding(
        max_new_tokens=spec.max_new_tokens,
        num_beams=spec.eval.num_beams,
        ends=tuple(known),
        filler=(known[0] if known else 0) if filler is None else filler,
        ids={name: value for name, value in values.items() if isinstance(value, int)},
    )


def _generation_config(spec: JobSpec) -> dict[str, Any]:
    if spec.model.path is None:
        return {}
    try:
        found = json.loads((Path(spec.model.path) / GENERATION_CONFIG).read_bytes())
    except (OSError, ValueError):  # a model needs none
        return {}
    return found if isinstance(found, dict) else {}


def _end_of_chat(spec: JobSpec, tokenizer: Any, config: Any) -> int | None:
    """The last special token that the template puts after a response."""
    data = replace(spec.data, max_source_length=_LONG, max_target_length=_LONG)
    encoder = make_encoder(tokenizer, data, encoder_decoder=config.is_encoder_decoder)
    if not isinstance(encoder, ChatEncoder):
        return None
    [found] = encoder.encoded(iter([TextExample("a chat of two letters", "a", "b")]))
    known = tokenizer.added_tokens_decoder
    special = {number for number, token in known.items() if token.special}
    return next((number for number in reversed(found.target) if number in special), None)
