"""The record of a thinned checkpoint, as somebody may have damaged it."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.runs.thinning_record import SCHEMA, THINNED, ThinnedRecord, read_thinned


@pytest.mark.parametrize("when", ["1e300", "NaN", "Infinity", "-1e18", '"now"', "null"])
def test_a_time_that_is_none_is_named(when: str, tmp_path: Path) -> None:
    text = f'{{"schema": "{SCHEMA}", "dropped": ["step"], "time": {when}}}'
    (tmp_path / THINNED).write_text(text)
    with pytest.raises(BadFile, match="is not a record of the schema"):
        read_thinned(tmp_path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = ThinnedRecord("masters", ("exp_avg",), 1.8e9)
    (tmp_path / THINNED).write_text(record.to_json())
    assert read_thinned(tmp_path) == record
    assert "thinned on 2027-01-15 (exp_avg dropped)" in record.sentence()
