from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.io.torchzip.archives import archive_bytes
from zerotools.core.boxes import Box
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.io.distcp.item_chunks import Items
from zerotools.io.distcp.metadata import Item, Metadata
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor

VALUES = b"".join(number.to_bytes(4, "little") for number in range(600))


def archives(folder: Path, names: list[str]) -> dict[str, Item]:
    """One data file of an archive for each name, all of the same tensor."""
    storage = Storage("0", FLOAT32, 600, "cpu")
    data = archive_bytes(StoredTensor(storage, FLOAT32, 0, (600,), (1,)), [VALUES])
    (folder / "__0_0.distcp").write_bytes(data * len(names))
    return {n: Item("__0_0.distcp", i * len(data), len(data)) for i, n in enumerate(names)}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_chunks_lie_where_the_values_are(tmp_path: Path) -> None:
    found = Items(tmp_path, Metadata({}, {}))
    for name, item in archives(tmp_path, ["a", "b", "c"]).items():
        chunk = found.chunk(name, FLOAT32, Box.whole((600,)), item)
        assert (tmp_path / chunk.file).read_bytes()[chunk.offset :][: len(VALUES)] == VALUES


def test_a_file_stays_open_until_nobody_needs_its_items(tmp_path: Path) -> None:
    before, found = open_files(), Items(tmp_path, Metadata({}, {}))
    for name, item in archives(tmp_path, ["a", "b"]).items():
        found.chunk(name, FLOAT32, Box.whole((600,)), item)
    assert open_files() == before + 1
    del found
    assert open_files() == before


def test_a_file_that_is_open_already_is_noted_by_who_records(tmp_path: Path) -> None:
    items = archives(tmp_path, ["a", "b"])
    found = Items(tmp_path, Metadata({}, {}))
    found.chunk("a", FLOAT32, Box.whole((600,)), items["a"])
    with recording_sources() as sources:
        found.chunk("b", FLOAT32, Box.whole((600,)), items["b"])
    assert list(sources.stamps) == [tmp_path / "__0_0.distcp"]


def test_a_file_that_is_cut_while_it_is_open_is_refused(tmp_path: Path) -> None:
    items = archives(tmp_path, ["a", "b"])
    found = Items(tmp_path, Metadata({}, {}))
    found.chunk("a", FLOAT32, Box.whole((600,)), items["a"])
    os.truncate(tmp_path / "__0_0.distcp", items["b"].offset + 100)
    with pytest.raises(BadFile, match="is truncated"):
        found.chunk("b", FLOAT32, Box.whole((600,)), items["b"])
