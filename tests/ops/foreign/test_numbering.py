"""Numbers of an optimizer, by the orders that programs make groups in."""

from __future__ import annotations

import pytest

from tests.ops.foreign.made import SHAPES
from zerotools.core.errors import BadRequest
from zerotools.ops.foreign.numbering import names_of_numbers

DECAYED = frozenset({"embed.weight", "head.weight"})


def numbers(*sizes: int) -> list[list[str]]:
    members = iter(f"optimizer.state.{n}" for n in range(sum(sizes)))
    return [[next(members) for _ in range(size)] for size in sizes]


def shapes_of(groups: list[list[str]], *names: str) -> dict[str, tuple[int, ...]]:
    members = [member for group in groups for member in group]
    return {member: SHAPES[name] for member, name in zip(members, names, strict=True)}


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((3,), ("embed.weight", "norm.weight", "head.weight")),
        ((2, 1), ("embed.weight", "head.weight", "norm.weight")),
        ((1, 2), ("norm.weight", "embed.weight", "head.weight")),
    ],
)
def test_one_group_or_two_are_in_the_models_order(
    sizes: tuple[int, ...], names: tuple[str, ...]
) -> None:
    groups = numbers(*sizes)
    found = names_of_numbers(groups, shapes_of(groups, *names), SHAPES, DECAYED, "it")
    assert tuple(found.values()) == names
    assert list(found) == [member for group in groups for member in group]


def test_parameters_without_state_have_their_place_too() -> None:
    groups = numbers(2, 1)
    found = names_of_numbers(groups, {"optimizer.state.2": (4,)}, SHAPES, DECAYED, "it")
    assert found["optimizer.state.1"] == "head.weight"


@pytest.mark.parametrize("sizes", [(4,), (1, 1, 1), (3, 0)])
def test_what_fits_in_no_order_is_refused(sizes: tuple[int, ...]) -> None:
    groups = numbers(*sizes)
    with pytest.raises(BadRequest, match=r"it has the state of \d parameters .* no usual order"):
        names_of_numbers(groups, {}, SHAPES, DECAYED, "it")


def test_other_shapes_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"4 elements.*68 elements"):
        names_of_numbers(numbers(3), {"optimizer.state.0": (4,)}, SHAPES, None, "it")


def test_two_orders_that_both_fit_are_not_guessed_between() -> None:
    square = {"a.weight": (4, 4), "b.weight": (4, 4), "c.weight": (4, 4), "norm.weight": (4, 4)}
    groups = numbers(2, 2)
    decayed = {"a.weight", "c.weight"}
    with pytest.raises(BadRequest, match=r"number 0 may be a.weight or b.weight"):
        names_of_numbers(groups, {}, square, decayed, "it")
