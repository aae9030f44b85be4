"""A narrow config has the layers of the one that it is made of."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
KINDS = ("bamba", "deepseek_v3", "falcon_h1", "gemma3", "gpt2", "llama", "mamba2", "qwen3_next")
MOST = 3_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_stays_and_widths_become_small(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    from zerotoolsd.trainer.model.meta_model import make_meta_model
    from zerotoolsd.trainer.model.tiny_model import narrow_config, same_layers

    config = CONFIG_MAPPING[kind]()
    full, small = make_meta_model(config), make_meta_model(narrow_config(config))
    assert same_layers(full, small)
    assert len(small.blocks) == len(full.blocks)
    assert small.parameter_count()[0] < MOST < full.parameter_count()[0]


def test_what_decides_who_sees_whom_stays() -> None:
    from transformers import CONFIG_MAPPING

    from zerotoolsd.trainer.model.tiny_model import narrow_config

    def narrowed(kind: str, **values: Any) -> Any:
        return narrow_config(CONFIG_MAPPING[kind](**values))

    assert narrowed("bert", is_decoder=True).is_decoder
    assert not narrowed("jamba").use_mamba_kernels
    assert not narrowed("bert").is_decoder
    mistral = narrowed("mistral", num_hidden_layers=3, num_key_value_heads=1)
    assert (mistral.num_hidden_layers, mistral.num_key_value_heads) == (3, 1)
    scaled = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48}
    rope = narrowed("phi3", rope_parameters={**scaled, "long_factor": [1.0] * 48}).rope_parameters
    assert rope["rope_type"] == "default"
