"""Which types of models are tied where their config.json does not say so."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.io.huggingface.tied_by_default import TIED_TYPES, ties_embeddings

TIED_SINCE_5 = {"mt5", "qwen3_vl_moe_text", "vilt"}
"""transformers 4.57 has False for them."""


@pytest.mark.parametrize(
    ("config", "is_tied"),
    [
        ({"model_type": "llama", "tie_word_embeddings": True}, True),
        ({"model_type": "llama"}, False),
        ({"model_type": "llama", "tie_word_embeddings": "true"}, False),
        ({"model_type": "gemma2"}, True),
        ({"model_type": "gemma2", "tie_word_embeddings": None}, True),
        ({"model_type": "gemma2", "tie_word_embeddings": False}, False),
        ({"model_type": ["gemma2"]}, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, True),
        ({"model_type": "gemma3", "text_config": {"tie_word_embeddings": False}}, False),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}, False),
        ({}, False),
    ],
)
def test_both_names_are_one_where_whoever_loads_it_says_so(
    config: dict[str, Any], is_tied: bool
) -> None:
    assert ties_embeddings(config) is is_tied


@pytest.mark.torch
def test_the_types_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    there = set(CONFIG_MAPPING.keys())
    tied = {
        name for name in there if getattr(CONFIG_MAPPING[name], "tie_word_embeddings", 0) is True
    }
    assert TIED_TYPES & there <= tied
    assert tied - TIED_SINCE_5 <= TIED_TYPES
    assert not TIED_TYPES & TIED_SINCE_5
