from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest
from zerotools.jobs.text.toml_writer import to_toml

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
)


@given(st.dictionaries(TEXT, VALUES))
def test_what_is_written_is_read_again(tree: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tree, {})) == tree


def test_comments_stand_beside_their_keys() -> None:
    text = to_toml({"gpus": 2, "zero": {"stage": 3}}, {"zero.stage": "ds.json:4\nstage"})
    assert text == "gpus = 2\n\n[zero]\nstage = 3  # ds.json:4 stage\n"


@pytest.mark.parametrize("value", [None, [None], float("inf")])
def test_what_toml_cannot_say(value: Any) -> None:
    with pytest.raises(BadRequest, match=r"^model\.x: "):
        to_toml({"model": {"x": value}}, {})
