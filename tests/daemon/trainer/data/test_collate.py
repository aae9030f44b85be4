"""What a decoder reads before each of its tokens, by the model's rule or by ours."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest

pytestmark = pytest.mark.torch
LABELS = [[5, 6, 7, 2], [8, 2, -100, -100]]
TINY = {"d_model": 16, "vocab_size": 32, "encoder_layers": 1, "decoder_layers": 1}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


def model_of(kind: str, **config: Any) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **config))


@pytest.mark.parametrize("kind", ["m2m_100", "blenderbot", "bart"])
def test_it_begins_with_the_start_token_and_is_filled_up(kind: str) -> None:
    """transformers shifts labels so in the forward pass, and gives no method to some models."""
    import sys

    import torch

    from zerotoolsd.trainer.data.collate import check_decoder_start, decoder_inputs

    model = model_of(kind, **TINY, **HEADS, pad_token_id=1, decoder_start_token_id=3)
    check_decoder_start(model)
    labels = torch.tensor(LABELS)
    wanted = sys.modules[type(model).__module__].shift_tokens_right(labels, 1, 3)
    assert torch.equal(decoder_inputs(model, labels), wanted)
    assert wanted.tolist() == [[3, 5, 6, 7], [3, 8, 2, 1]]


@pytest.mark.parametrize(("kind", "is_there"), [("t5", True), ("t5", False), ("m2m_100", True)])
def test_a_config_that_does_not_say_how_to_begin_is_refused(kind: str, is_there: bool) -> None:
    from zerotoolsd.trainer.data.collate import check_decoder_start

    tiny = TINY if kind == "m2m_100" else {"d_model": 16, "num_layers": 1, "vocab_size": 32}
    model = model_of(kind, **tiny)
    model.config.decoder_start_token_id = None
    if not is_there:
        del model.config.decoder_start_token_id
    with pytest.raises(BadRequest, match=f"the {kind} model lacks decoder_start_token_id, which"):
        check_decoder_start(model)
