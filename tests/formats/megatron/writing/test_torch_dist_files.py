"""Which key each weight belongs to: layers and experts are counted, and none may be missing."""

from __future__ import annotations

import pytest

from tests.formats.megatron.writing.weights import DENSE, EXPERTS, PATH, model
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.formats.megatron.writing.torch_dist_files import StoredPlace, stored_places

FC2 = "mlp.experts.local_experts.1.linear_fc2.weight"


def test_layers_that_are_alike_are_stacked() -> None:
    places = stored_places(PATH, model(EXPERTS, EXPERTS, EXPERTS))
    name = f"decoder.layers.2.{FC2}"
    assert places.is_uniform
    assert places.of(name) == StoredPlace(
        "decoder.layers.mlp.experts.experts.linear_fc2.weight", (2, 1)
    )
    assert places.counts[name] == (3, 2)
    assert places.of("output_layer.weight") == StoredPlace("output_layer.weight", ())
    assert places.counts["output_layer.weight"] == ()


def test_layers_that_differ_have_keys_of_their_own() -> None:
    places = stored_places(PATH, model(DENSE, EXPERTS))
    assert not places.is_uniform
    assert places.of(f"decoder.layers.1.{FC2}") == StoredPlace(
        "decoder.layers.1.mlp.experts.experts.linear_fc2.weight", (1,)
    )
    assert places.of("mtp.layers.0.eh_proj.weight").index == ()


def test_a_layer_of_another_type_is_not_stacked() -> None:
    weights = model(DENSE, DENSE)
    name = "decoder.layers.1.mlp.linear_fc2.weight"
    weights[name] = weights[name].__class__(FLOAT32, weights[name].shape, ())
    assert not stored_places(PATH, weights).is_uniform


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("decoder.layers.1.", "not number 1, so the model is not complete"),
        (
            f"decoder.layers.0.{FC2.replace('.1.', '.0.')}",
            "not number 0, so the model is not complete",
        ),
    ],
)
def test_what_is_missing_is_named(missing: str, said: str) -> None:
    weights = model(EXPERTS, EXPERTS, EXPERTS)
    left = {name: tensor for name, tensor in weights.items() if not name.startswith(missing)}
    with pytest.raises(BadRequest, match=said):
        stored_places(PATH, left)


def test_experts_of_one_layer_are_alike() -> None:
    weights = model(DENSE, {**EXPERTS, FC2: (16, 13)})
    with pytest.raises(BadRequest, match=r"\[16, 12\] but .* of shape \[16, 13\]"):
        stored_places(PATH, weights)
