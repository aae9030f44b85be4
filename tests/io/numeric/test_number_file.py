"""Files that are cut short, replaced or removed while a job trains on them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotools.io.numeric.number_file import NumberFile


def numbers(path: Path, count: int) -> Path:
    path.write_bytes(np.arange(count, dtype="<u4").tobytes())
    return path


def test_it_is_read_a_part_at_a_time(tmp_path: Path) -> None:
    file = NumberFile(numbers(tmp_path / "a", 10), "<u4", offset=8, count=7)
    assert len(file) == 7
    assert file.read(1, 3).tolist() == [3, 4]
    assert file.read(5, 99).tolist() == [7, 8]
    assert file.read(9, 12).tolist() == []


def test_its_name_may_go(tmp_path: Path) -> None:
    file = NumberFile(numbers(tmp_path / "a", 10), "<u4")
    (tmp_path / "a").unlink()
    assert file.read(0, 2).tolist() == [0, 1]


def test_one_that_is_cut_short_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    file = NumberFile(numbers(tmp_path / "a", 10_000), "<u4")
    os.truncate(tmp_path / "a", 4 * 5000)
    assert file.read(4990, 5000).tolist() == list(range(4990, 5000))
    with pytest.raises(BadFile, match=r"a ends at byte 20000, .* a program truncated the file"):
        file.read(4990, 5010)


def test_a_file_of_half_a_number(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(BadFile, match="ends in the middle of a number"):
        NumberFile(tmp_path / "a", "<u4")
