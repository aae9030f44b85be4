"""Which weights are quantised, and what the config says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ops.quantised.models import FP8, fp8_tensors, plain, read
from zerotools import formats
from zerotools.core.errors import BadRequest
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantise import quantise_weights

MODEL: dict[str, Array] = {
    "model.embed_tokens.weight": plain(256, 128),
    "model.layers.0.self_attn.q_proj.weight": plain(128, 128),
    "model.layers.0.self_attn.q_proj.bias": plain(128),
    "model.layers.0.self_attn.k_proj.weight": plain(64, 128),
    "model.layers.0.mlp.gate.weight": plain(128, 128),
    "model.layers.0.mlp.gate_proj.weight": plain(256, 128),
    "model.layers.0.input_layernorm.weight": plain(128),
    "lm_head.weight": plain(256, 128),
}


def test_linear_layers_that_blocks_divide(tmp_path: Path) -> None:
    source = read(tmp_path / "m", MODEL, None)
    made = quantise_weights(source, find_quantised(source), "fp8-block")
    names = [key.name for key in made.weights.tensors]
    added = [name for name in names if name not in MODEL]
    assert {name.removesuffix("_scale_inv") for name in added} == {
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
    }
    assert set(made.settings.pop("modules_to_not_convert")) == {  # type: ignore[call-overload]
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.mlp.gate",
        "model.layers.0.self_attn.k_proj",
    }
    assert made.settings == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "float",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    assert "2 tensors; left unchanged: 6 tensors" in made.note


def test_groups_of_32_need_less(tmp_path: Path) -> None:
    source = read(tmp_path / "m", MODEL, None)
    made = quantise_weights(source, find_quantised(source), "mxfp8")
    assert "mxfp8 groups of 32, 3 tensors" in made.note
    assert made.settings["weight_block_size"] == [1, 32]


REFUSED: dict[str, tuple[dict[str, Array], dict[str, Any] | None, str]] = {
    "already quantised": (fp8_tensors(), FP8, "already quantised .fp8 blocks 128x128"),
    "said to be quantised": (MODEL, FP8, "already quantised"),
    "scales without a config": (fp8_tensors(), None, "already quantised"),
    "nothing to quantise": ({"norm.weight": plain(128)}, None, "no matrix"),
}


@pytest.mark.parametrize(("tensors", "settings", "said"), REFUSED.values(), ids=REFUSED)
def test_refusals(
    tmp_path: Path, tensors: dict[str, Array], settings: dict[str, Any] | None, said: str
) -> None:
    source = read(tmp_path / "m", tensors, settings)
    with pytest.raises(BadRequest, match=said):
        quantise_weights(source, find_quantised(source), "fp8-block")


def test_without_a_config_nobody_could_read_it(tmp_path: Path) -> None:
    read(tmp_path / "m", MODEL, None)
    (tmp_path / "m/config.json").unlink()
    source = formats.read(tmp_path / "m")
    with pytest.raises(BadRequest, match="pass --config-dir"):
        quantise_weights(source, find_quantised(source), "fp8-block")


def test_layers_that_are_kept_the_other_way_round(tmp_path: Path) -> None:
    read(tmp_path / "m", MODEL, None)
    (tmp_path / "m/config.json").write_text('{"model_type": "gpt2"}')
    source = formats.read(tmp_path / "m")
    with pytest.raises(BadRequest, match="model_type gpt2"):
        quantise_weights(source, find_quantised(source), "fp8-block")
