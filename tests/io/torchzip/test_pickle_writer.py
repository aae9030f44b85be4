"""Storages are numbered as they come, however the source named them."""

from __future__ import annotations

from zerotools.core.dtypes import FLOAT32
from zerotools.io.torchzip.lay_out_archive import lay_out
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps_renumbered
from zerotools.io.torchzip.unpickle import loads


def view(key: str, offset: int) -> StoredTensor:
    return StoredTensor(Storage(key, FLOAT32, 4), FLOAT32, offset, (2,), (1,))


def test_each_storage_is_numbered_once() -> None:
    tree = {"a": view("7", 0), "b": view("new", 0), "c": view("7", 2)}
    pickle, storages = dumps_renumbered(tree)
    found = loads(pickle, source="test")
    assert [storage.key for storage in storages] == ["7", "new"]
    assert [found[name].storage.key for name in "abc"] == ["0", "1", "0"]
    assert [found[name].offset for name in "abc"] == [0, 0, 2]


def test_a_known_checksum_stands_in_the_archive() -> None:
    pickle, storages = dumps_renumbered([view("7", 0), view("new", 0)])
    layout = lay_out(pickle, [storage.nbytes for storage in storages], {0: 0x01020304})
    text = dict(layout.literals)
    known, unknown = ([_at(text, at) for at in payload.crc_at] for payload in layout.payloads)
    assert known == [b"\x04\x03\x02\x01"] * 2
    assert unknown == [bytes(4)] * 2


def _at(literals: dict[int, bytes], offset: int) -> bytes:
    begin = max(at for at in literals if at <= offset)
    return literals[begin][offset - begin :][:4]
