"""The maps that come along, and which is for a model."""

from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.maps.map_file import read_map
from zerotools.maps.shipped_maps import (
    check_layout,
    map_of_model,
    shipped_map,
    shipped_maps,
    source_of,
)


def test_each_map_is_whole_and_no_model_has_two() -> None:
    kinds = [kind for family in shipped_maps().values() for kind in family.model_types]
    assert len(kinds) == len(set(kinds))
    for name, family in shipped_maps().items():
        assert read_map(source_of(name).encode(), f"{name}.toml") == family
        assert map_of_model({"model_type": family.model_types[0]}) is family
        assert family.about
        assert all(layout.about for layout in family.layouts.values())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match="the map lama does not exist; the nearest is llama"):
        shipped_map("lama")
    with pytest.raises(
        Unsupported, match="no map exists for models of type qwen4; the nearest is qwen"
    ):
        map_of_model({"model_type": "qwen4"})
    with pytest.raises(BadRequest, match="has no model_type"):
        map_of_model({})
    with pytest.raises(BadRequest, match="has no layout megatrn; the nearest is megatron"):
        check_layout(shipped_map("llama"), "megatrn", hub="hf")
    check_layout(shipped_map("llama"), "hf", hub="hf")
