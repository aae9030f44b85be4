"""Numbers of an optimizer, by the orders that programs make groups in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.ops.resume_from_other_program.made import SHAPES
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup
from zerotools.formats.torch_optimizers import Shape
from zerotools.ops.resume_from_other_program.match_parameter_order import (
    NameOrder,
    names_of_numbers,
)

DECAYED = frozenset({"embed.weight", "head.weight"})
MODEL = NameOrder(SHAPES, DECAYED)
SQUARE = dict.fromkeys(("a", "b", "c", "d"), (4, 4))


def numbers(*sizes: int, decay: Sequence[float] = ()) -> list[ParamGroup]:
    members = iter(f"optimizer.state.{n}" for n in range(sum(sizes)))
    groups = [ParamGroup(tuple(next(members) for _ in range(size)), {}) for size in sizes]
    rates = zip(groups, decay, strict=True) if decay else ()
    return [ParamGroup(g.params, {"weight_decay": rate}) for g, rate in rates] or groups


def state_of(
    groups: list[ParamGroup], names: Sequence[str], shapes: Mapping[str, Shape] = SHAPES
) -> dict[str, dict[str, Shape]]:
    members = [member for group in groups for member in group.params]
    return {m: {"step": (), "exp_avg": shapes[n]} for m, n in zip(members, names, strict=True)}


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((3,), ("embed.weight", "norm.weight", "head.weight")),
        ((2, 1), ("embed.weight", "head.weight", "norm.weight")),
        ((1, 2), ("norm.weight", "embed.weight", "head.weight")),
        ((1, 1, 1), ("embed.weight", "norm.weight", "head.weight")),
    ],
)
def test_each_group_has_its_parameters_in_the_models_order(
    sizes: tuple[int, ...], names: tuple[str, ...]
) -> None:
    groups = numbers(*sizes)
    state = state_of(groups, names)
    if len(sizes) == 3:  # embed and head may lie in either group
        with pytest.raises(BadRequest, match=r"number 0 may be (embed|head).weight or "):
            names_of_numbers(groups, state, MODEL, "it")
        return
    found = names_of_numbers(groups, state, MODEL, "it")
    assert tuple(found.values()) == names
    assert list(found) == [member for group in groups for member in group.params]


def test_parameters_without_state_have_their_place_too() -> None:
    groups = numbers(2, 1)
    state = {"optimizer.state.2": {"exp_avg": (4,)}}
    found = names_of_numbers(groups, state, MODEL, "it")
    assert found["optimizer.state.1"] == "head.weight"


@pytest.mark.parametrize("sizes", [(4,), (1, 1), (3, 1)])
def test_another_number_of_parameters_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(
        BadRequest, match=r"it has the optimizer state of \d parameters .* another model"
    ):
        names_of_numbers(numbers(*sizes), {}, MODEL, "it")


def test_the_same_parameters_in_another_order_are_refused() -> None:
    order = NameOrder({"a": (2, 3), "b": (4,), "c": (2, 3)})
    shapes = ((2, 3), (2, 3), (4,))
    state = {f"optimizer.state.{n}": {"exp_avg": shape} for n, shape in enumerate(shapes)}
    with pytest.raises(BadRequest, match="their shapes differ, so the optimizer got"):
        names_of_numbers(numbers(3), state, order, "it")


def test_other_shapes_are_refused() -> None:
    state = {"optimizer.state.0": {"exp_avg": (4,)}}
    with pytest.raises(BadRequest, match=r"4 elements.*68 elements"):
        names_of_numbers(numbers(3), state, NameOrder(SHAPES), "it")


def test_two_divisions_that_both_fit_are_not_guessed_between() -> None:
    order = NameOrder(SQUARE, {"a", "c"})
    with pytest.raises(BadRequest, match=r"number 0 may be [abcd] or [abcd]; pass --order FILE"):
        names_of_numbers(numbers(2, 2), {}, order, "it")


def test_which_group_decays_is_said_by_its_options() -> None:
    order = NameOrder(SQUARE, {"a", "c"})
    found = names_of_numbers(numbers(2, 2, decay=(0.0, 0.1)), {}, order, "it")
    assert list(found.values()) == ["b", "d", "a", "c"]


def test_sections_of_a_file_are_the_groups() -> None:
    groups = numbers(2, 2)
    order = NameOrder(SQUARE, sections=[["d", "a"], ["c", "b"]], can_be_concatenated=True)
    assert list(names_of_numbers(groups, {}, order, "it").values()) == ["d", "a", "c", "b"]
    other = NameOrder(SQUARE, sections=[["d"], ["c", "b", "a"]])
    with pytest.raises(BadRequest, match=r"--order has 1 and 3 names, .* have 2 and 2"):
        names_of_numbers(groups, {}, other, "it")
    with pytest.raises(BadRequest, match=r"c as number 2, which has shape \[4, 4\], .* \[2\]"):
        names_of_numbers(groups, {"optimizer.state.2": {"exp_avg": (2,)}}, order, "it")


def test_a_file_without_sections_lists_the_groups_one_after_another() -> None:
    groups = numbers(2, 1)
    names = ("embed.weight", "head.weight", "norm.weight")
    order = NameOrder({name: SHAPES[name] for name in names}, can_be_concatenated=True)
    found = names_of_numbers(groups, state_of(groups, names), order, "it")
    assert tuple(found.values()) == names


def test_factors_of_a_matrix_fit_it_and_no_vector() -> None:
    groups = numbers(2, 1)
    factors = {"exp_avg_sq_row": (8,), "exp_avg_sq_col": (4,)}
    state = dict.fromkeys(groups[0].params, factors)
    state |= {groups[1].params[0]: {"exp_avg_sq": (4,)}}
    found = names_of_numbers(groups, state, MODEL, "it")
    assert list(found.values()) == ["embed.weight", "head.weight", "norm.weight"]
