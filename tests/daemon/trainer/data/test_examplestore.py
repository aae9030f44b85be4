"""Files that are cut short, replaced or removed while a job trains on them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.token_files import TokenArray
from zerotoolsd.trainer.data.examplestore import Examples, index_of
from zerotoolsd.trainer.data.tokenstream import TokenStream, largest_id


def numbers(path: Path, count: int) -> Path:
    path.write_bytes(np.arange(count, dtype="<u4").tobytes())
    return path


def test_examples_that_are_cut_short(tmp_path: Path) -> None:
    path = numbers(tmp_path / "ids", 100)
    index_of(path).write_bytes(np.array([[0, 50, 1, 1], [50, 50, 1, 1]], "<u8").tobytes())
    examples = Examples(path, encoder_decoder=False)
    assert len(examples) == 2
    assert examples.size(1) == 49
    os.truncate(path, 4 * 60)
    assert len(examples.example(0).inputs) == 49
    with pytest.raises(BadFile, match="something cut it short"):
        examples.example(1)


def test_token_files_that_shrink_or_go(tmp_path: Path) -> None:
    arrays = [TokenArray(numbers(tmp_path / f"{n}", 100), 0, 100, "uint32") for n in range(3)]
    stream = TokenStream(arrays, 100)
    assert stream.read(98, 102).tolist() == [98, 99, 0, 1]
    os.truncate(tmp_path / "1", 40)
    with pytest.raises(BadFile, match=r"1 ends at byte 40, .* it is truncated"):
        stream.read(100, 150)
    (tmp_path / "2").unlink()
    with pytest.raises(BadFile, match=r"2 is missing; data\.tokens names it"):
        stream.read(200, 210)
    with pytest.raises(BadFile, match="cut it short"):
        largest_id(arrays[1:2])


def test_more_token_files_than_may_be_open(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 300
    arrays = [TokenArray(numbers(tmp_path / f"{n}", 4), 0, 4, "uint32") for n in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert len(TokenStream(arrays, 4).read(0, 4 * count)) == 4 * count
        assert largest_id(arrays) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
