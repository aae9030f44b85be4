"""torch.save archives by hand, with anything in them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.io.torchzip.archives import archive_bytes
from zerotools.core import dtypes
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor

FLOAT = dtypes.FLOAT32


def stored(
    shape: tuple[int, ...] = (2, 2),
    strides: tuple[int, ...] = (2, 1),
    *,
    offset: int = 0,
    numel: int = 4,
    key: str = "0",
) -> StoredTensor:
    """A float32 tensor in a storage that says it has `numel` elements."""
    return StoredTensor(Storage(key, FLOAT, numel), FLOAT, offset, shape, strides)


def state_dict(more: dict[str, Any]) -> bytes:
    """A state dict of one weight, and `more`."""
    return archive_bytes({"weight": stored(), **more}, [bytes(16)])


def sparse_archive(path: Path, pickle: bytes, size: int) -> None:
    """An archive without checksums, whose pickle begins with `pickle` and has `size` bytes: the
    others are a hole in the file, and take no room."""
    name = b"a/data.pkl"
    sizes = (0, size, size, len(name), 0)
    head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 0, 0, 0, 0, 0, *sizes) + name
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 0, 0, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, 0)
    begin = len(head) + size
    end = (b"PK\x05\x06", 0, 0, 1, 1, len(entry) + len(name), begin, 0)
    with path.open("wb") as file:
        file.write(head + pickle)
        file.seek(begin)
        file.write(entry + name + struct.pack("<4s4H2LH", *end))
