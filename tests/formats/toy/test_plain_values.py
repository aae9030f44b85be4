"""What JSON lacks comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.toy.plain_values import NotPlain, decode, encode
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DTYPES

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(DTYPES)
)
KEYS = st.text() | st.integers() | st.binary() | st.none()


def _inside(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=4)
    return lists | lists.map(tuple) | st.dictionaries(KEYS, values, max_size=4)


@given(st.recursive(LEAVES, _inside, max_leaves=12))
def test_what_is_plain_comes_back_with_its_type(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value))))
    assert repr(found) == repr(value)


def test_what_is_not_plain_is_refused() -> None:
    for value in (Opaque("a", "B"), {1, 2}, object(), {"a": [object()]}):
        with pytest.raises(NotPlain, match="an object of"):
            encode(value)


def test_trees_without_end_are_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    doubled: list[Any] = []
    for _ in range(30):
        doubled = [doubled, doubled]
    for value in (itself, doubled):
        with pytest.raises(NotPlain, match="more than"):
            encode(value)
