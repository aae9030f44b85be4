"""Which layout a checkpoint has: found by its names, or refused with what the nearest lacks."""

from __future__ import annotations

import pytest

from tests.maps.small_maps import CONFIG, changed
from zerotools.core.errors import BadRequest
from zerotools.maps.detect_layout import detect_layout
from zerotools.maps.expression_views import Shape
from zerotools.maps.map_file import FamilyMap
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import shipped_map

FAMILY = changed()


def held(name: str, family: FamilyMap = FAMILY) -> dict[str, Shape]:
    return dict(layout_of_model(family, name, CONFIG).tensors)


@pytest.mark.parametrize("name", ["hf", "other"])
def test_a_layout_is_known_by_its_names(name: str) -> None:
    assert detect_layout(FAMILY, CONFIG, {}, held(name)).layout.name == name


def test_layouts_that_are_the_same_are_one() -> None:
    assert detect_layout(FAMILY, CONFIG, {}, held("twin")).layout.name == "other"


def test_layouts_of_the_same_names_must_be_told_apart() -> None:
    end = '[layouts.twin]\nsame_as = "other"'
    more = '[layouts.swapped]\nkeep = true\ntensors = { "$L.q" = "transpose($L.q; 0, 1)" }'
    family = changed((end, more))
    with pytest.raises(BadRequest, match=r"fit the layouts hf and swapped .* choose one"):
        detect_layout(family, CONFIG, {}, held("hf", family))


def test_layouts_that_differ_in_experts_alone_are_one_where_all_layers_are_dense() -> None:
    family = shipped_map("qwen3_moe")
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 16, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
        "moe_intermediate_size": 8, "num_experts": 4, "vocab_size": 64, "mlp_only_layers": [0, 1],
    }  # fmt: skip
    dense = dict(layout_of_model(family, "hf", config).tensors)
    assert detect_layout(family, config, {}, dense).layout.name == "hf"
    sparse = config | {"mlp_only_layers": [1]}
    some = dict(layout_of_model(family, "autoep", sparse).tensors)
    assert detect_layout(family, sparse, {}, some).layout.name == "autoep"


def test_what_the_nearest_layout_lacks_is_said() -> None:
    have = held("other")
    del have["block.0.q"]
    have["block.0.qq"] = (4, 4)
    with pytest.raises(BadRequest, match=r"lacks 1 tensor .*block.0.q.* the nearest"):
        detect_layout(FAMILY, CONFIG, {}, have)


def test_a_config_that_contradicts_a_shape_is_said_with_both() -> None:
    have = held("hf")
    have["layer.1.kv"] = (6, 4)
    with pytest.raises(
        BadRequest, match=r"layer.1.kv has shape \[6, 4\], but config.json gives it"
    ):
        detect_layout(FAMILY, CONFIG, {}, have)


def test_rows_that_are_no_padding_are_said_and_not_taken_for_another_layout() -> None:
    have = held("other")
    have["top.in"] = have["top.out"] = (140, 4)
    with pytest.raises(BadRequest, match=r"140 rows, but config.json has a vocabulary of 10"):
        detect_layout(FAMILY, CONFIG, {}, have)
