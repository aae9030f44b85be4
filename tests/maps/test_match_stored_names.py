"""Names on disk: of other versions, of all layers in one, and what is no weight."""

from __future__ import annotations

import pytest

from tests.maps.small_maps import CONFIG, changed
from zerotools.core.errors import BadRequest
from zerotools.maps.expression_views import Shape
from zerotools.maps.match_stored_names import stored_names, written_views
from zerotools.maps.model_layout import ModelLayout, layout_of_model


def layout(*changes: tuple[str, str], **config: object) -> ModelLayout:
    given = {"vocab_multiple": 1}
    return layout_of_model(changed(*changes), "other", {**CONFIG, **config}, given)


def held_by(made: ModelLayout) -> dict[str, Shape]:
    return {name: view.view.shape for name, view in written_views(made).items()}


def test_equal_layers_are_written_in_one_and_read_again() -> None:
    made = layout()
    held = held_by(made)
    assert held["block.q"] == (2, 4, 4)
    assert held["block.experts"] == (2, 3, 4, 3)
    stored = stored_names(made, held)
    assert not stored.faults
    assert set(stored.views) == set(made.tensors)


def test_layers_that_differ_are_written_one_by_one() -> None:
    made = layout(('"hidden if biased"', '"hidden if i == 0"'))
    assert "block.0.q" in held_by(made)
    assert "block.0.bias" in held_by(made)
    assert not stored_names(made, held_by(made)).faults


def test_both_ways_to_store_layers_are_read() -> None:
    made = layout()
    assert not stored_names(made, made.tensors).faults


def test_another_name_is_taken_and_two_for_one_tensor_are_refused() -> None:
    made = layout()
    held = dict(made.tensors)
    held["block.1.query"] = held.pop("block.1.q")
    assert not stored_names(made, held).faults
    held["block.1.q"] = held["block.1.query"]
    with pytest.raises(
        BadRequest, match=r"is ambiguous, because the checkpoint has both block.1.q and"
    ):
        stored_names(made, held)


def test_parts_along_the_first_dimension_may_have_names_of_their_own() -> None:
    also = '"block.{i}.query" = "block.{i}.q"'
    made = layout((also, f'{also}\n"block.{{i}}.expert.{{e}}" = "block.{{i}}.experts"'))
    held = dict(made.tensors)
    for layer in range(2):
        shape = held.pop(f"block.{layer}.experts")
        held |= {f"block.{layer}.expert.{number}": shape[1:] for number in range(shape[0])}
    stored = stored_names(made, held)
    assert not stored.faults
    view = stored.views["block.1.experts"]
    assert view.names == tuple(f"block.1.expert.{number}" for number in range(3))
    assert view.view.shape == made.tensors["block.1.experts"]
    del held["block.0.expert.1"]
    held |= {"block.1.expert.2": (9, 9), "block.1.expert.3": (4, 3)}
    stored = stored_names(made, held)
    assert stored.missing == ("block.0.expert.1",)
    assert stored.wrong == (("block.1.expert.2", (9, 9), (4, 3)),)
    assert stored.unknown == ("block.1.expert.3",)
    with pytest.raises(BadRequest, match=r"is ambiguous, .* both block\.0\.experts"):
        stored_names(made, {**held, "block.0.experts": made.tensors["block.0.experts"]})


def test_an_index_that_the_map_does_not_have_is_refused() -> None:
    also = '"block.{i}.query" = "block.{i}.q"'
    for other in ("block.{i}.expert.{n}", "block.{i}.{e}.{n}", "blocks"):
        with pytest.raises(BadRequest, match=r"the same indices|\[indices\]"):
            layout((also, f'"{other}" = "block.{{i}}.experts"'))


def test_what_does_not_match_is_said() -> None:
    made = layout()
    held = dict(made.tensors)
    del held["block.0.kv"]
    held |= {"stray": (1,), "block.0.inv_freq": (2,), "top.in": (11, 4)}
    stored = stored_names(made, held)
    assert stored.missing == ("block.0.kv",)
    assert stored.unknown == ("stray",)
    assert stored.ignored == ("block.0.inv_freq",)
    assert stored.wrong == (("top.in", (11, 4), (10, 4)),)


def test_a_tensor_of_other_layers_than_config_says_is_wrong() -> None:
    held = held_by(layout(num_layers=3))
    stored = stored_names(layout(), held)
    assert ("block.q", (3, 4, 4), (2, 4, 4)) in stored.wrong


def test_an_optional_tensor_may_be_missing() -> None:
    made = layout(tied=True)
    held = held_by(made)
    del held["top.out"]
    assert not stored_names(made, held).faults
