"""Reads the torch.save format from before torch 1.6, which torch still writes if the zip format is
switched off.

A file is a sequence of pickles: a magic number, a protocol version, facts about the machine, the
object (its tensors refer to storages by key), and the list of these keys. After the pickles, for
each key in the order of this list, the file has the number of elements as a little-endian int64,
and the bytes of the storage.

Source: torch/serialization.py (`_legacy_save`, `_legacy_load`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.fast_dataclass import dataclass
from zerotools.io.files.metadata_memory_limit import may_be_read
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.pickle_machine import TruncatedPickle
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor, walk_values
from zerotools.io.torchzip.unpickle import LARGEST_PICKLE, loads_from

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_FIRST_READ = 2**20
_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
_FRAME = b"\x95"
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """The contents of a file in the old format: the saved tree, and the byte offset of each storage
    keyed by key.
    """

    tree: Any
    offsets: Mapping[str, int]


def is_legacy(window: FileRange) -> bool:
    """Return whether a file begins with the magic number of the old format, pickled with protocol 2
    or newer. From protocol 4 on, the number is inside a frame.
    """
    begin = window.read(0, min(window.length, 23))
    if begin[:1] != b"\x80" or begin[1:2] not in _PROTOCOLS:
        return False
    number = begin[11:] if begin[2:3] == _FRAME else begin[2:]
    return number[:2] == b"\x8a\x0a" and int.from_bytes(number[2:12], "little") == MAGIC


def read_legacy(window: FileRange) -> LegacyFile:
    """Read the pickles, and find the positions of the storages after them.

    Raises:
        BadFile: the file is damaged or truncated.
        Unsupported: the file was written on a big-endian machine, or has another protocol version.
    """
    size = min(window.length, _FIRST_READ)
    while True:
        try:
            tree, keys, end = _pickles(window, window.read(0, size))
            break
        except TruncatedPickle:
            if size == window.length or size >= LARGEST_PICKLE:
                raise
            size = min(window.length, 4 * size, LARGEST_PICKLE)
            if not may_be_read(size, window.other_data_size(size)):
                raise BadFile(
                    f"{window}: its pickles have more than {size} bytes, more than in any real "
                    "checkpoint: the file was made to fill the memory; do not use it"
                ) from None
    return LegacyFile(tree, _offsets(window, _storages(window, tree), keys, end))


def _storages(window: FileRange, tree: Any) -> dict[str, Storage]:
    """Return every storage that the tree refers to, also from inside objects of unknown classes.
    The dict is keyed by the storage's key.
    """
    found: dict[str, Storage] = {}
    for value in walk_values(tree):
        if isinstance(value, StoredTensor):
            value = value.storage
        if isinstance(value, Storage) and found.setdefault(value.key, value).nbytes != value.nbytes:
            raise BadFile(
                f"{window}: storage {value.key!r} has both {found[value.key].nbytes} and "
                f"{value.nbytes} bytes in its pickle; copy or download the file again"
            )
    return found


def _pickles(window: FileRange, data: bytes) -> tuple[Any, list[str], int]:
    data_size = window.other_data_size(len(data))
    _, at = loads_from(data, 0, source=window)
    protocol, at = loads_from(data, at, source=window)
    machine, at = loads_from(data, at, source=window)
    if protocol != PROTOCOL:
        raise Unsupported(
            f"{window} has torch.save protocol {protocol!r:.20}, but zerotools reads only "
            f"{PROTOCOL}; save it again with torch.save"
        )
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Unsupported(
            f"{window} was written on a big-endian machine; save it on a little-endian machine"
        )
    tree, at = loads_from(data, at, source=window, data_size=data_size)
    keys, at = loads_from(data, at, source=window, data_size=data_size)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadFile(f"{window}: its list of storages is damaged; copy or download the file again")
    return tree, keys, at


def _offsets(
    window: FileRange, storages: Mapping[str, Storage], keys: list[str], at: int
) -> dict[str, int]:
    """Return the byte offset of each storage, keyed by the storage's key. `at` is the offset of the
    first byte after the pickles.

    If lost bytes are tolerated, a storage after the end of a truncated file has the offset that
    it should have.
    """
    offsets = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise BadFile(
                f"{window}: storage {key!r} belongs to no tensor, so its size is unknown; copy or "
                "download the file again"
            )
        is_cut = at + _COUNT.size + storage.nbytes > window.length
        left = max(0, window.length - at)
        announced = window.read(at, _COUNT.size) if left >= _COUNT.size else None
        numel = storage.numel if announced is None else _COUNT.unpack(announced)[0]
        at += _COUNT.size
        if numel != storage.numel or is_cut:
            error = BadFile(
                f"{window}: storage {key!r} of {storage.numel} elements is truncated or damaged: "
                f"its header gives it {numel} elements, but {left} bytes are left in the file; "
                "copy or download the file again"
            )
            if not is_cut:
                raise error
            raise_or_record(window.path, error)
        offsets[key] = at
        at += storage.nbytes
    return offsets
