"""What a record says of the data that a resumed run reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_hub_layout import LAYOUTS
from tests.runs.records import a_record
from zerotools.core.errors import BadFile
from zerotools.runs.training_record import (
    DataRecord,
    hub_from_tree,
    hub_to_tree,
    read_record,
    write_record,
)

A, B, C = "0a a.jsonl", "0b b.jsonl", "0c c.jsonl"


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ((A, B), (A, B), ""),
        ((), (A, B), ""),  # the record is older
        ((A, B), ("0a renamed.jsonl", B), ""),
        ((A, B), (B, A), "the same files in another order"),
        ((A, B), (A, "0d b.jsonl"), "b.jsonl changed"),
        ((A, B), (A, C), "b.jsonl no longer read, c.jsonl new"),
        ((A,), tuple(f"{n} {n}.txt" for n in range(5)), None),
    ],
)
def test_changes_of_the_files(
    before: tuple[str, ...], now: tuple[str, ...], changes: str | None
) -> None:
    found = DataRecord(1, 1, 1, before).changes(DataRecord(1, 1, 1, now))
    expected = "a.jsonl no longer read, 0.txt and 1.txt and 2.txt and 2 more new"
    assert found == (expected if changes is None else changes)


LAYOUT = {name: tuple(blocks) for name, (_, blocks) in LAYOUTS.items()}
BAD: dict[str, Any] = {
    "must be a table": [],
    "x must be a list of blocks": {"x": []},
    "x has a block without the name of a tensor": {"x": [{"shape": [2]}]},
    "x has a block with shape = [2, -1]": {"x": [{"tensor": "y", "shape": [2, -1]}]},
    "x has a block with size = 'all'": {"x": [{"tensor": "y", "shape": [2], "size": "all"}]},
    "x has a block of y that is not valid": {"x": [{"tensor": "y", "shape": [2], "start": [0, 0]}]},
    "x has a block that ends outside of y": {"x": [{"tensor": "y", "shape": [2], "offset": 1}]},
}


def test_a_record_has_its_layout_back(tmp_path: Path) -> None:
    write_record(tmp_path, a_record(hub=LAYOUT))
    assert read_record(tmp_path).hub == LAYOUT
    assert hub_from_tree(json.loads(json.dumps(hub_to_tree(LAYOUT)))) == LAYOUT


def test_a_record_without_one_is_as_before(tmp_path: Path) -> None:
    path = write_record(tmp_path, a_record())
    assert "hub" not in json.loads(path.read_text())
    assert read_record(tmp_path).hub == {}


@pytest.mark.parametrize("why", BAD)
def test_a_damaged_layout_is_named(tmp_path: Path, why: str) -> None:
    path = write_record(tmp_path, a_record())
    path.write_text(json.dumps({**json.loads(path.read_text()), "hub": BAD[why]}))
    with pytest.raises(BadFile) as caught:
        read_record(tmp_path)
    assert f"{path}: hub: {why}" in str(caught.value)
