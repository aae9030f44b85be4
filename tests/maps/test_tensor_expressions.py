"""What a tensor is made of, as text."""

from __future__ import annotations

import pytest

from zerotools.maps.tensor_expressions import (
    Operation,
    TensorName,
    indices_of,
    names_in,
    parse,
    sizes_in,
    with_indices,
)


def test_words_nest_and_sizes_may_have_brackets_and_commas() -> None:
    found = parse("concat( stack(a.{i}.{e}.w; e), part(b-c; 0, 0, (2 + n) * 3) ; 1)")
    assert found == Operation(
        "concat",
        (
            Operation("stack", (TensorName("a.{i}.{e}.w"),), ("e",)),
            Operation("part", (TensorName("b-c"),), ("0", "0", "(2 + n) * 3")),
        ),
        ("1",),
    )
    assert list(names_in(found)) == ["a.{i}.{e}.w", "b-c"]
    assert list(sizes_in(found)) == ["1", "e", "0", "0", "(2 + n) * 3"]
    assert parse("item(a; [1, 2] == x)") == Operation("item", (TensorName("a"),), ("[1, 2] == x",))
    assert indices_of("a.{i}.{e}.{i}") == ("i", "e")
    assert with_indices("a.{i}.{e}.{i}", {"i": 3, "e": 0}) == "a.3.0.3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a tensor or a function is missing"),
        ("pairs(a; 2", "lacks its closing bracket"),
        ("pairs(a)", "lacks a semicolon"),
        ("pairs(a; 2) b", "'b' after"),
        ("pirs(a; 2)", "pirs(...) does not exist; the nearest is pairs"),
        ("pairs(a; 2, 3)", "takes 1 sizes, but has 2"),
        ("pairs(a, b; 2)", "takes 1 tensor, but has 2"),
        ("pairs(a; import)", "is not an expression"),
        ("pairs(" * 100 + "a", "more than 64 words"),
    ],
)
def test_what_is_no_expression_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the sentence is compared
        parse(text)
    assert said in str(caught.value)
