"""What a tensor is made of, as text."""

from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.maps.expressions import (
    Operation,
    TensorName,
    indices_of,
    parse_tensor_expression,
    size_of,
    sizes_in,
    tensors_in,
    value_of,
    with_indices,
)


def test_words_nest_and_sizes_may_have_brackets_and_commas() -> None:
    found = parse_tensor_expression(
        "concat( stack(a.{i}.{e}.w; e), part(b-c; 0, 0, (2 + n) * 3) ; 1)"
    )
    assert found == Operation(
        "concat",
        (
            Operation("stack", (TensorName("a.{i}.{e}.w"),), ("e",)),
            Operation("part", (TensorName("b-c"),), ("0", "0", "(2 + n) * 3")),
        ),
        ("1",),
    )
    assert list(tensors_in(found)) == ["a.{i}.{e}.w", "b-c"]
    assert list(sizes_in(found)) == ["1", "e", "0", "0", "(2 + n) * 3"]
    assert parse_tensor_expression("item(a; [1, 2] == x)") == Operation(
        "item", (TensorName("a"),), ("[1, 2] == x",)
    )
    assert indices_of("a.{i}.{e}.{i}") == ("i", "e")
    assert with_indices("a.{i}.{e}.{i}", {"i": 3, "e": 0}) == "a.3.0.3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a tensor or a function is expected"),
        ("pairs(a; 2", "lacks its closing bracket"),
        ("pairs(a)", "lacks a semicolon"),
        ("pairs(a; 2) b", "'b' cannot follow"),
        ("pirs(a; 2)", "pirs(...) does not exist; the nearest is pairs"),
        ("pairs(a; 2, 3)", "takes 1 sizes, but has 2"),
        ("pairs(a, b; 2)", "takes 1 tensor, but has 2"),
        ("pairs(a; import)", "is not a valid expression"),
        ("pairs(" * 100 + "a", "more than 64 operations"),
    ],
)
def test_what_is_no_expression_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the sentence is compared
        parse_tensor_expression(text)
    assert said in str(caught.value)


NAMES = {"a": 6, "b": 4, "kind": "toy", "none": None, "list": [1, 3]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a * b - 2", 22),
        ("a // b + a % b", 3),
        ("-a + 7", 1),
        ("none or b", 4),
        ("gone or none or 3", 3),
        ("not gone and a == 6", True),
        ("kind in ['toy', 'other']", True),
        ("2 not in list", True),
        ("2 in gone", False),
        ("gone == None", True),
        ("a if kind == 'toy' else b", 6),
        ("3 < b <= 4", True),
        ("gone", None),
    ],
)
def test_an_expression_is_what_python_makes_of_it(text: str, value: object) -> None:
    assert value_of(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone * 2", "config.json has no gone"),
        ("a // 0", "cannot be computed"),
        ("kind + 1", "which are not whole numbers"),
        ("kind * 1000000000000", "which are not whole numbers"),
        ("kind % a", "which are not whole numbers"),
        ("a < kind", "cannot be computed"),
        ("kind", "must be a whole number"),
        ("a == 6", "must be a whole number"),
        ("-a", "must be a whole number"),
        ("a * 10000000000000000", "must be a whole number"),
    ],
)
def test_what_is_no_size_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        size_of(text, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        *("a.b", "f(a)", "[a for a in b]", "lambda: 1", "a ** b", "a @ b", "1 +", "a[0]", "x := 1"),
        "2if 1 else 3",
    ],
)
def test_nothing_else_of_python_is_understood(text: str) -> None:
    with pytest.raises(ValueError, match=r"maps do not support|is not a valid expression"):
        value_of(text, NAMES)
