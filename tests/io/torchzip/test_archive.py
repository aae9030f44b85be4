from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.torchzip.archives import archive_bytes, opened, zip_bytes
from zerotools.core import dtypes
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickles import dumps

TENSOR = StoredTensor(Storage("0", dtypes.INT16, 3), dtypes.INT16, 1, (2,), (1,))


def test_a_tree_and_the_place_of_its_storage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"?" * 17 + archive_bytes({"w": TENSOR}, [b"abcdef"]))
    with opened(path, 17, path.stat().st_size - 17) as window:
        archive = Archive.open(window)
        read = archive.tree()["w"]
        assert read == TENSOR
        at = archive.payload(read.storage)
    assert path.read_bytes()[at : at + 6] == b"abcdef"


@pytest.mark.parametrize(
    ("records", "error", "said"),
    [
        ({"a/x": b""}, BadFile, "without data.pkl"),
        ({"a/data.pkl": b"", "a/byteorder": b"big"}, Unsupported, "big-endian"),
        ({"a/data.pkl": b"", "a/byteorder": b"middle-out"}, Unsupported, "big-endian"),
    ],
)
def test_what_is_no_archive_of_torch(
    tmp_path: Path, records: dict[str, bytes], error: type[Exception], said: str
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes(records))
    with opened(path) as window, pytest.raises(error, match=said):
        Archive.open(window)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ({}, "no record of storage '0'"),
        ({"a/data/0": b"abcd"}, "has 4 bytes, but its pickle gives 6"),
    ],
)
def test_a_storage_that_is_missing_or_of_another_size(
    tmp_path: Path, records: dict[str, bytes], said: str
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes({"a/data.pkl": dumps(TENSOR), **records}))
    with opened(path) as window, pytest.raises(BadFile, match=said):
        Archive.open(window).payload(TENSOR.storage)
