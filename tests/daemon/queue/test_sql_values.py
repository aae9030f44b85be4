"""Job files become the same text in one step and in several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from zerotoolsd.queue import sql_values
from zerotoolsd.queue.sql_values import json_of, json_steps


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"env": {}, "name": None, "a": [1, {"z": 1, "b": 2}]},
        {"env": {f"V{number}": "é\ud800" for number in range(5)}, 'na"me': 1.5, "b": {"c": {}}},
    ],
)
def test_a_tree_is_the_same_text_in_steps(
    tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_values, "_AT_ONCE", 2)
    made = list[str]()

    def text() -> Iterator[None]:
        made.append((yield from json_steps(tree)))

    taken = list(text())
    assert made == [json_of(tree)]
    tables = [value for value in tree.values() if isinstance(value, dict)]
    assert len(taken) >= sum(-(-len(table) // 2) for table in tables)
