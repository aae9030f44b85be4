"""A torch.save archive: the tree that was saved, and the position of each storage's bytes.

torch writes records one after another, each as

    local header, name, padding | the bytes | descriptor: PK78, CRC-32, size, size

and the directory at the end. If an archive was truncated, its directory is lost, but the records
before the cut are complete. `recovered_records` finds these records from the beginning of the file.
The header of a record has neither size nor CRC-32. Both are in the descriptor, and its position
follows from the size in it. A record is accepted only if position and size agree. Its CRC-32 is
checked when its bytes are read.

Layout: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 and 4.3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.metadata_memory_limit import DataSize, may_be_read
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.pickle_values import Storage
from zerotools.io.torchzip.unpickle import LARGEST_PICKLE, loads
from zerotools.io.torchzip.zip_directory import (
    HAS_DESCRIPTOR,
    LOCAL_HEADER,
    ZipEntry,
    payload_of,
    read_directory,
    read_entry,
)

PICKLE = "data.pkl"


def records_of(window: FileRange) -> dict[str, ZipEntry]:
    """Return the records of a zip keyed by name, from its directory.

    If the directory is lost and lost bytes are tolerated, return the records that are found by
    their headers.

    Raises:
        BadFile, Unsupported: for the reasons of `read_directory`.
    """
    try:
        return read_directory(window)
    except (BadFile, Unsupported) as error:  # a flipped bit may look like an unsupported zip
        raise_or_record(window.path, error)
        records = recovered_records(window)
        if PICKLE not in records:
            raise
        return records


@dataclass(frozen=True, slots=True)
class Archive:
    """A torch.save archive in the byte range `window`. `records` are the records of the zip, by
    name without the top directory.
    """

    window: FileRange
    records: dict[str, ZipEntry]

    @classmethod
    def open(cls, window: FileRange) -> Archive:
        """Read the zip directory, and check that the archive can be read.

        Raises:
            BadFile: the zip is damaged, or torch.save did not write it.
            Unsupported: the archive is compressed, or was written on a big-endian machine.
        """
        archive = cls(window, records_of(window))
        if PICKLE not in archive.records:
            raise BadFile(
                f"{window} is a zip without data.pkl, so torch.save did not write it; name a file "
                "of torch.save"
            )
        archive._refuse_big_endian()
        return archive

    def _refuse_big_endian(self) -> None:
        order = self.records.get("byteorder")
        if order is None:
            return
        try:
            is_little = order.length <= 6 and read_entry(self.window, order) == b"little"
        except BadFile as error:
            raise_or_record(self.window.path, error)
            return
        if not is_little:
            raise Unsupported(
                f"{self.window} was written on a big-endian machine; save it on a little-endian "
                "machine"
            )

    def tree(self, data_size: DataSize | None = None) -> Any:
        """Return the saved tree. Tensors in it are `StoredTensor`, objects of unknown classes are
        `Opaque`.

        The size of the tree is limited in proportion to the data that it describes. `data_size`
        returns the number of bytes of this data; by default it is the size of the file without the
        pickle.
        """
        record = self.records[PICKLE]
        if record.length > LARGEST_PICKLE:
            raise Unsupported(
                f"{self.window}: its pickle has {record.length} bytes, but zerotools reads at "
                f"most {LARGEST_PICKLE}"
            )
        if data_size is None:
            data_size = self.window.other_data_size(record.length)
        if not may_be_read(record.length, data_size):
            raise BadFile(
                f"{self.window}: its pickle has {record.length} bytes, more than in any real "
                f"checkpoint with {data_size()} bytes of data: the file was made to fill the "
                "memory; do not use it"
            )
        return loads(read_entry(self.window, record), source=self.window, data_size=data_size)

    def payload(self, storage: Storage) -> int:
        """Return the offset in the file of the first byte of a storage.

        Raises:
            BadFile: the archive has no record of the storage, or a record of another size.
        """
        record = self.records.get(f"data/{storage.key}")
        if record is None:
            raise BadFile(
                f"{self.window} has no record of storage {storage.key!r}; copy or download it again"
            )
        if record.length != storage.nbytes:
            raise BadFile(
                f"{self.window}: storage {storage.key!r} has {record.length} bytes, but its pickle "
                f"gives {storage.nbytes}; copy or download the file again"
            )
        return self.window.offset + payload_of(self.window, record)


_HEADER, _DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
_SIZES = (struct.Struct("<4s3L"), struct.Struct("<4sL2Q"))
"""The two layouts of a descriptor. Records of 4 GiB or more have the second one."""
_LONGEST = max(layout.size for layout in _SIZES)
_MOST_TRIED = 2**17
"""The largest number of possible descriptors that are examined. The four bytes at the beginning of
a descriptor occur by chance once in 4 GiB, and once for each record of an archive that is stored
inside another one.
"""
_READ_BYTES = 2**20


def recovered_records(window: FileRange) -> dict[str, ZipEntry]:
    """Find the records of a zip without its directory. Return them keyed by name, without the top
    directory.

    Raises:
        BadFile: two records have the same name.
    """
    records: dict[str, ZipEntry] = {}
    for record in _records(window):
        _, _, name = record.name.partition("/")
        if name in records:
            raise BadFile(
                f"{window} has the record {record.name!r} twice; copy or download it again"
            )
        records[name] = record
    if any(record.crc for record in records.values()):
        return records
    return {name: record._replace(has_crc=False) for name, record in records.items()}


def _records(window: FileRange) -> Iterator[ZipEntry]:
    at = 0
    while at + LOCAL_HEADER.size <= window.length:
        fields = LOCAL_HEADER.unpack(window.read(at, LOCAL_HEADER.size))
        signature, _, flags, method, _, _, crc, packed, length, name_size, extra_size = fields
        begin = at + LOCAL_HEADER.size + name_size + extra_size
        if signature != _HEADER or method or begin > window.length:
            return
        try:
            name = window.read(at + LOCAL_HEADER.size, name_size).decode()
        except UnicodeDecodeError:
            return
        end = begin + length
        if flags & HAS_DESCRIPTOR:
            found = _descriptor(window, begin)
            if found is None:
                return
            crc, length, end = found
        elif packed != length or end > window.length:
            return
        yield ZipEntry(name, at, length, crc, end)
        at = end


def _descriptor(window: FileRange, begin: int) -> tuple[int, int, int] | None:
    """Search for the descriptor of the record that has its bytes from `begin` on. Return (CRC-32,
    size of the bytes, end of the descriptor), or None.

    A descriptor matches if the size in it agrees with its own position.
    """
    at, tried = begin, 0
    while at + _SIZES[0].size <= window.length and tried < _MOST_TRIED:
        data = window.read(at, min(_READ_BYTES, window.length - at))
        hit = data.find(_DESCRIPTOR)
        while hit >= 0 and tried < _MOST_TRIED:
            tried += 1
            known = data[hit : hit + _LONGEST]
            if len(known) < _LONGEST:
                known = window.read(at + hit, min(_LONGEST, window.length - at - hit))
            for layout in _SIZES:
                if len(known) >= layout.size:
                    _, crc, *sizes = layout.unpack_from(known)
                    if sizes == [at + hit - begin] * 2:
                        return crc, sizes[0], at + hit + layout.size
            hit = data.find(_DESCRIPTOR, hit + 1)
        at += len(data) - len(_DESCRIPTOR) + 1
    return None
