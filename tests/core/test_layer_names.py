"""The layer and kind of tensors of several programs, and the order of layers."""

from __future__ import annotations

import tracemalloc

import pytest

from zerotools.core.checkpoint import Key
from zerotools.core.layer_names import in_order_of_numbers, layers_in_order, place_of


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.layers.3.mlp.down_proj.weight", "model.layers.3", "mlp.down_proj.weight"),
        ("model.layers.3.experts.7.w1.weight", "model.layers.3", "experts.*.w1.weight"),
        ("lm_head.weight", "lm_head", "weight"),
        ("0.weight", "0", "weight"),
        ("optimizer.state.100", "optimizer.state", "100"),
        ("scale", "scale", "scale"),
        ("blocks.h2.weight", "blocks.h2", "weight"),
    ],
)
def test_the_place_of_a_tensor(name: str, layer: str, kind: str) -> None:
    assert place_of(name) == (layer, kind)


def test_layers_are_in_order_of_their_numbers() -> None:
    names = ["embed.weight", "h.0.a", "h.10.a", "h.2.a", "tower.1.a", "head.weight", "h.1.a"]
    expected = ["embed", "h.0", "h.1", "h.2", "h.10", "tower.1", "head"]
    assert layers_in_order(names) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("h.0.b h.0.a h.1.b h.1.a h.0.c", "h.0.b h.0.a h.1.b h.1.a h.0.c"),
        ("e h.0.b h.0.a h.10.a h.10.b h.2.a n", "e h.0.b h.0.a h.2.a h.10.a h.10.b n"),
        ("h.0.x.0 h.0.x.10 h.0.x.9 h.1.x.3", "h.0.x.0 h.0.x.9 h.0.x.10 h.1.x.3"),
        ("h.10 h.2 h.10:m h.2:m", "h.2 h.10 h.2:m h.10:m"),
        ("h.10 h.10:m h.2 h.2:m g", "h.2 h.2:m h.10 h.10:m g"),
        (f"h.{'9' * 5000} h.010 h.2", f"h.2 h.010 h.{'9' * 5000}"),
        ("", ""),
    ],
)
def test_tensors_are_in_order_of_numbers(given: str, expected: str) -> None:
    def keys(text: str) -> list[Key]:
        return [Key(name, role) for name, _, role in (t.partition(":") for t in text.split())]

    assert in_order_of_numbers(keys(given)) == keys(expected)


def test_a_name_of_many_modules_takes_little_memory() -> None:
    tensors = [Key(f"{'a.' * 20_000}w", ""), Key("h.10", ""), Key("h.2", "")]
    tracemalloc.start()
    try:
        assert in_order_of_numbers(tensors)[1:] == [Key("h.2", ""), Key("h.10", "")]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * 2**20


def test_a_part_with_more_digits_than_python_converts_is_no_number() -> None:
    names = [f"model.{number}.weight" for number in ("9" * 5000, "10", "2")]
    assert layers_in_order(names)[-2:] == ["model.2", "model.10"]
