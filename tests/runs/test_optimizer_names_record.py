"""The record of an order that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.runs.optimizer_names_record import NAMED_ORDER, NamedOrder, read_named_order


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_named_order(tmp_path) is None
    record = NamedOrder("the names in order.txt", [["a", "b"], ["c"]])
    (tmp_path / NAMED_ORDER).write_text(record.to_json())
    assert read_named_order(tmp_path) == record
    assert record.sentence().endswith("comes from the names in order.txt")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "zerotools.order/1", "groups": 3}'])
def test_a_damaged_one_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAMED_ORDER).write_text(text)
    with pytest.raises(BadFile, match="copy or download it again"):
        read_named_order(tmp_path)
