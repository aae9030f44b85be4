"""Layouts of one model: shapes, the proof that nothing is lost, what contradicts config.json."""

from __future__ import annotations

from typing import Any

import pytest

from tests.maps.small_maps import CONFIG, changed
from zerotools.core.boxes import prove_cover
from zerotools.core.errors import BadRequest
from zerotools.maps.model_layout import layout_of_model


def refused(*changes: tuple[str, str], config: dict[str, Any] | None = None, **given: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        layout_of_model(changed(*changes), "other", {**CONFIG, **(config or {})}, given)
    return str(caught.value)


def test_both_sides_have_shapes_and_cover_each_other() -> None:
    layout = layout_of_model(changed(), "other", CONFIG, {"vocab_multiple": 8})
    assert layout.tensors["top.in"] == (16, 4)
    assert layout.tensors["block.1.experts"] == (3, 4, 3)
    assert "block.0.bias" not in layout.tensors
    for views in (layout.of_hub, layout.to_hub):
        for view in views.values():
            boxes = [piece.box for piece in view.view.pieces]
            assert prove_cover(view.view.shape, boxes) is None
    assert {n for view in layout.to_hub.values() for n in view.names} == set(layout.tensors)


def test_a_condition_brings_a_tensor_to_both_sides() -> None:
    layout = layout_of_model(changed(), "other", {**CONFIG, "biased": True})
    assert layout.hub["layer.1.bias"] == layout.tensors["block.1.bias"] == (4,)


def test_tied_weights_may_be_missing_on_both_sides() -> None:
    layout = layout_of_model(changed(), "other", {**CONFIG, "tied": True})
    assert layout.optional == {"head", "top.out"}


def test_sizes_come_from_arguments_before_config() -> None:
    layout = layout_of_model(changed(), "other", CONFIG, {"hidden_size": 8})
    assert layout.tensors["block.0.q"] == (8, 8)
    assert layout_of_model(changed(), "other", {"text_config": CONFIG}).tensors["block.0.q"]


def test_an_argument_that_the_map_does_not_know_is_refused() -> None:
    said = refused(vocab_multipl=8)
    assert "the map toy has no vocab_multipl, which was passed with --map-arg; the" in said


def test_layers_of_one_kind_are_made_once() -> None:
    layout = layout_of_model(changed(), "other", CONFIG)
    assert layout.of_hub["block.0.q"].view is layout.of_hub["block.1.q"].view


def test_a_map_that_is_not_total_names_the_tensor() -> None:
    said = refused(('"block.{i}.q" = "pairs($L.q; heads)"\n', ""), ('"block.{i}.query"', "#"))
    assert "is incomplete: no rule uses layer.0.q" in said


def test_a_map_that_leaves_a_part_names_the_elements() -> None:
    said = refused((", part($L.kv; 0, hidden, 2 * hidden)", ""))
    assert "not invertible: 16 elements of layer.0.kv, the first in [4:8, 0:4]" in said


def test_a_map_that_has_a_part_twice_names_both_rules() -> None:
    said = refused(
        ('"block.{i}.bias"', '"block.{i}.again" = "part($L.q; 0, 1, 3)"\n"block.{i}.bias"')
    )
    assert "two rules use [1:3, 0:4] of layer.0.q" in said
    assert "block.{i}.q" in said
    assert "block.{i}.again" in said
    said = refused(
        ('"block.{i}.bias"', '"block.{i}.again" = "pairs($L.q; heads)"\n"block.{i}.bias"')
    )
    assert ": block.{i}.q and block.{i}.again" in said


def test_two_rules_for_one_name_are_both_named() -> None:
    change = ('"block.{i}.bias" =', '"once" = "$L.kv"\n"block.{i}.bias" =')
    assert "once: layer.{i}.kv uses the index i, which neither the name" in refused(change)
    said = refused(('"block.{i}.bias" =', '"block.0.q" = "head"\n"block.{i}.bias" ='))
    assert "block.0.q is ambiguous, because the rules block.{i}.q and block.0.q" in said


def test_sizes_that_do_not_fit_are_said_with_both_numbers() -> None:
    assert "rows into 3 equal blocks" in refused(num_heads=3)
    assert "4 rows is" not in refused(num_heads=4)
    assert "part(...) takes [0, 5) of dimension 0" not in refused(hidden_size=5)
    said = refused(("part($L.kv; 0, hidden, 2 * hidden)", "part($L.kv; 0, hidden, 3 * hidden)"))
    assert "part(...) takes [4, 12) of dimension 0, but this dimension has length 8" in said


def test_a_config_that_says_too_little_or_too_much_is_refused() -> None:
    assert "config.json has no hidden_size" in refused(config={"hidden_size": None})
    assert "more than any model has" in refused(config={"num_experts": 10**9})
    assert "more than any real model has" in refused(config={"hidden_size": 2**40})


def test_only_part_of_what_a_tensor_is_made_of_is_no_model() -> None:
    change = ('"block.{i}.bias" = "$L.bias"', '"block.{i}.bias" = "concat($L.q, $L.bias; 0)"')
    said = refused(
        change, ('"block.{i}.q" = "pairs($L.q; heads)"\n', ""), ('"block.{i}.query"', "#")
    )
    assert "of layer.0.q and layer.0.bias" in said


def test_rows_that_are_not_padding_are_refused_with_the_numbers() -> None:
    family, rows = changed(), {"top.in": 16}
    layout = layout_of_model(family, "other", CONFIG, {"vocab_multiple": 8}, rows)
    assert layout.padded == {"top.in": (16, 10), "top.out": (16, 10)}
    with pytest.raises(
        BadRequest, match=r"top.in has 18 rows, but config.json has a vocabulary of 10"
    ):
        layout_of_model(family, "other", CONFIG, {"vocab_multiple": 8}, {"top.in": 18})
    with pytest.raises(BadRequest, match="8 rows are not padding"):
        layout_of_model(family, "other", CONFIG, {"vocab_multiple": 1}, {"top.in": 18})
    for there in (10, 128, 256, 1024):  # unpadded, and padded for tensor-parallel ranks
        made = layout_of_model(family, "other", CONFIG, {}, {"top.in": there})
        assert made.tensors["top.in"] == (there, 4)
    with pytest.raises(BadRequest, match=r"9 rows, but config.json has a vocabulary of 10"):
        layout_of_model(family, "other", CONFIG, {}, {"top.in": 9})


def test_a_layout_for_other_models_is_refused() -> None:
    said = refused(('stacked = "i"', 'stacked = "i"\nif = "not bias and hidden > 100"'))
    assert "is only for models with hidden > 100, but hidden is 4 in config.json" in said
