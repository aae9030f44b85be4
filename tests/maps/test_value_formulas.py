"""Rules for weights that a program stores in another scale."""

from __future__ import annotations

import math

import pytest

from zerotools.core.errors import BadRequest
from zerotools.core.quantisation_schemes import Arithmetic
from zerotools.maps.value_formulas import BoundValue, parse_stored_value

NAMES = {"head": 12, "one": 1}


def bound(text: str) -> BoundValue:
    made = parse_stored_value(text).bound(NAMES)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "there", "back"),
    [
        ("A / root(head)", Arithmetic("*", 1 / math.sqrt(12)), Arithmetic("*", math.sqrt(12))),
        ("A * root(head)", Arithmetic("*", math.sqrt(12)), Arithmetic("/", math.sqrt(12))),
        ("A * bf16(root(head))", Arithmetic("*", 3.46875), Arithmetic("/", 3.46875)),
        ("A + 1", Arithmetic("+", 1.0), Arithmetic("-", 1.0)),
    ],
)
def test_a_weight_is_computed_there_and_back(
    text: str, there: Arithmetic, back: Arithmetic
) -> None:
    assert bound(text).of_weight(to_hub=False) == there
    assert bound(text).of_weight(to_hub=True) == back


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("A / root(head)", Arithmetic("*", math.sqrt(12)), Arithmetic("*", 12.0)),
        ("A * root(head)", Arithmetic("/", math.sqrt(12)), Arithmetic("/", 12.0)),
        ("A * bf16(root(head))", Arithmetic("/", 3.46875), Arithmetic("/", 3.46875**2)),
        ("A + 1", None, None),
    ],
)
def test_state_is_computed_the_other_way(
    text: str, first: Arithmetic | None, second: Arithmetic | None
) -> None:
    assert bound(text).of_state(1, to_hub=False) == first
    assert bound(text).of_state(2, to_hub=False) == second
    for order, there in ((1, first), (2, second)):
        back = bound(text).of_state(order, to_hub=True)
        signs = {"*": "/", "/": "*"}
        assert back == (there and Arithmetic(signs[there.operation], there.number))


@pytest.mark.parametrize("text", ["A / root(one)", "A * bf16(root(one))", "A + 0"])
def test_a_rule_that_changes_nothing_is_none(text: str) -> None:
    assert parse_stored_value(text).bound(NAMES) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A", "is not A"),
        ("B + 1", "is not A"),
        ("A - 1", "is not A"),
        ("A * 3", r"must have root\(...\) behind"),
        ("A + root(head)", r"must have root\(...\) behind"),
        ("A * bf16(head)", r"Call, which maps do not support"),
        ("A / root()", r"Call, which maps do not support"),
    ],
)
def test_another_rule_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_stored_value(text)


def test_a_size_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadRequest, match="no width"):
        parse_stored_value("A + width").bound(NAMES)
