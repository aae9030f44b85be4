"""Lay out a new `.distcp` file.

A `.distcp` file is a sequence of torch.save archives, each of one chunk of a tensor, or of a value
that is not a tensor. If the bytes of a chunk are copied, its archive reserves space for them and
for their checksum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from zerotools.core.boxes import row_major_strides
from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import DType
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes
from zerotools.io.distcp.metadata import Item
from zerotools.io.torchzip.lay_out_archive import ArchiveLayout, lay_out
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps


@dataclass
class PlannedFile:
    """A new data file. `name` is its name in `.metadata`, and `size` the number of bytes that are
    planned so far.
    """

    name: str
    size: int = 0
    literals: list[LiteralBytes] = field(default_factory=list)
    carried: list[CarriedBytes] = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)

    def add_archive(self, archive: bytes) -> Item:
        """Add an archive that `archive_of` made of a value that is not a tensor."""
        self.literals.append(LiteralBytes(self.size, archive))
        return self._append_item(len(archive))

    def carry(self, item: Item, root: Path) -> Item:
        """Add the bytes of an item of the file `root / item.file`, unchanged."""
        self.carried.append(CarriedBytes(self.size, root / item.file, item.offset, item.length))
        return self._append_item(item.length)

    def add_chunk(
        self, dtype: DType, shape: tuple[int, ...], data: bytes | None = None
    ) -> tuple[Item, int | None]:
        """Add a chunk of a tensor, with the bytes `data`, or with bytes that are copied later.

        Return the item, and the byte offset in the file at which the elements begin; None if the
        chunk has no elements.
        """
        begin, first = self.size, None
        layout = _archive(dtype, shape, None if data is None else crc32(data))
        self.literals += (LiteralBytes(begin + at, text) for at, text in layout.literals)
        for payload in layout.payloads:
            first = begin + payload.offset
            if data is None:
                crc_at = tuple(begin + at for at in payload.crc_at)
                self.checksums.append(Checksum(first, payload.length, crc_at))
            else:
                self.literals.append(LiteralBytes(first, data))
        return self._append_item(layout.length), first

    def plan(self) -> FilePlan:
        return FilePlan(self.size, self.literals, self.carried, self.checksums)

    def _append_item(self, length: int) -> Item:
        item = Item(self.name, self.size, length)
        self.size += length
        return item


def archive_of(value: Any) -> bytes:
    """Return the torch.save archive of a value that contains no tensors.

    Raises:
        Unsupported: zerotools cannot pickle the class of a value.
    """
    return b"".join(data for _, data in lay_out(dumps(value), []).literals)


@lru_cache(maxsize=4096)
def _archive(dtype: DType, shape: tuple[int, ...], crc: int | None) -> ArchiveLayout:
    """Return the layout of the archive of a contiguous tensor, cached because many chunks have the
    same dtype and shape.

    `crc` is the CRC-32 of the tensor's bytes, if it is known.
    """
    nbytes = Tensor(dtype, shape, ()).nbytes
    if dtype.torch_storage is None:
        storage = Storage("0", None, nbytes)
    else:
        storage = Storage("0", dtype, nbytes // dtype.itemsize)
    tensor = StoredTensor(storage, dtype, 0, shape, row_major_strides(shape))
    return lay_out(dumps(tensor), [nbytes], {} if crc is None else {0: crc})
