"""The choice of the encoder that reads the examples of a job."""

from __future__ import annotations

from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.data import ALL, SEPARATE, DataSpec
from zerotoolsd.trainer.data.encoding.chat_encoder import ChatEncoder, SeparateEncoder
from zerotoolsd.trainer.data.encoding.encoded import Encoder
from zerotoolsd.trainer.data.encoding.plain import PlainEncoder, SpecialEncoder
from zerotoolsd.trainer.data.encoding.truncating import Limits


def make_encoder(
    tokenizer: Any, data: DataSpec, *, encoder_decoder: bool, positions: int | None = None
) -> Encoder:
    """Return the encoder for a tokenizer, a job and a kind of model.

    Raises:
        BadRequest: the tokenizer lacks a required chat template, or an end of text.
    """
    limits = limits_of(data, encoder_decoder=encoder_decoder, positions=positions)
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if data.chat_template == "on" and not has_template:
        raise BadRequest(
            f'data.chat_template = "on": the tokenizer in {tokenizer.name_or_path} has '
            "no chat template; put its chat_template.jinja there, or leave the key out"
        )
    if has_template and data.chat_template != "off":
        if data.truncation == SEPARATE:
            return SeparateEncoder(tokenizer, limits, data.ignore_fields)
        return ChatEncoder(
            tokenizer,
            limits,
            all_answers=data.loss_on == ALL and not encoder_decoder,
            ignored=data.ignore_fields,
        )
    if tokenizer.eos_token_id is None:
        raise BadRequest(
            f"the tokenizer in {tokenizer.name_or_path} has no eos_token to mark the end of a "
            "response: name one in its tokenizer_config.json"
        )
    return (SpecialEncoder if encoder_decoder else PlainEncoder)(tokenizer, limits)


def limits_of(data: DataSpec, *, encoder_decoder: bool, positions: int | None) -> Limits:
    """Return how much of an example the job keeps, for a model with so many `positions`.

    A causal model does not read the last token, which it only predicts: one more than its positions
    fits. An encoder-decoder has the positions twice, for the prompt and for the response.
    """
    most_source, most_target = data.max_source_length, data.max_target_length
    if data.truncation == SEPARATE:
        return Limits(None, most_source, most_target)
    lengths = [length for length in (data.sequence_length, positions) if length is not None]
    most = min(lengths, default=None)
    if most is None:
        return Limits(None, most_source, most_target)
    if not encoder_decoder:
        return Limits(most + 1, most_source, most_target)
    return Limits(None, min(most, most_source or most), min(most, most_target or most))
