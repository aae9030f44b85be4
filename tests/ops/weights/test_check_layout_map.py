"""What a map says of a model and of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maps.hub_models import LLAMA, written
from zerotools import formats
from zerotools.core.errors import BadRequest
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import shipped_map
from zerotools.ops.weights.check_layout_map import (
    check_layouts,
    made_tensors,
    named_map,
    nearest_of_all,
)


def test_a_checkpoint_has_the_layouts_that_fit_and_comes_near_to_one(tmp_path: Path) -> None:
    written(tmp_path, "megatron")
    checkpoint = formats.read(tmp_path)
    family = shipped_map("llama")
    checks = check_layouts(family, LLAMA, {}, checkpoint)
    assert [check.name for check in checks if check.fits] == ["megatron"]
    assert nearest_of_all(checks) is None
    others = [check for check in checks if not check.fits]
    nearest = nearest_of_all(others)
    assert nearest is not None
    assert nearest.faults == min(check.faults for check in others)


def test_a_layout_that_is_none_for_the_model_says_why() -> None:
    checks = check_layouts(shipped_map("llama"), {**LLAMA, "attention_bias": True}, {}, None)
    refused = {check.name: check.refusal for check in checks if check.refusal}
    assert refused.keys() == {"meta", "titan", "maxtext", "maxtext-pairs"}
    assert "is only for models with" in str(refused["meta"])
    assert nearest_of_all([check for check in checks if check.refusal]) is None


def test_a_tensor_is_shown_with_its_parts() -> None:
    layout = layout_of_model(shipped_map("llama"), "megatron", LLAMA)
    made = {each.name: each for each in made_tensors(layout)}
    qkv = made["decoder.layers.self_attention.linear_qkv.weight"]
    assert qkv.shape == (2, 32, 16)
    assert qkv.parts[0] == ("model.layers.0.self_attn.q_proj.weight", (16, 16))
    assert len(qkv.parts) == 6
    hub = layout_of_model(shipped_map("llama"), "hf", LLAMA)
    assert made_tensors(hub)[0].parts == (("model.embed_tokens.weight", (20, 16)),)


def test_a_map_is_named_by_name_file_or_model(tmp_path: Path) -> None:
    own = tmp_path / "llama.toml"
    own.write_text('model_types = []\n[sizes]\n[indices]\n[hf]\n"a" = "2"\n[layouts]\n')
    assert named_map(str(own), None).hub.keys() == {"a"}
    assert named_map("llama", None) is named_map(None, LLAMA) is shipped_map("llama")
    with pytest.raises(BadRequest, match="name a map"):
        named_map(None, None)
    with pytest.raises(BadRequest, match="is not a map"):
        named_map(str(tmp_path), None)
