"""The records of a torch.save archive with a lost zip directory, found from its beginning.

torch writes records one after another, each as

    local header, name, padding | the bytes | descriptor: PK78, CRC-32, size, size

and the directory at the end. So a truncated archive has lost it, and records before the cut are
whole. The header has neither size nor CRC-32; both are in the descriptor, and its position follows
from the size in it. A record is accepted only if they agree. Its CRC-32 is checked when its bytes
are read.

Layout: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 and 4.3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from zerotools.core.errors import BadFile
from zerotools.io.torchzip.window import FileRange
from zerotools.io.torchzip.zip_directory import HAS_DESCRIPTOR, LOCAL_HEADER, ZipEntry

_HEADER, _DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
_SIZES = (struct.Struct("<4s3L"), struct.Struct("<4sL2Q"))
"""The descriptor of a record, and of one of 4 GiB or more."""
_LONGEST = max(layout.size for layout in _SIZES)
_MOST_TRIED = 2**17
"""The four bytes that a descriptor begins with come by chance once in 4 GiB, and once in each
record of an archive that is stored in another."""
_READ_BYTES = 2**20


def recovered(window: FileRange) -> dict[str, ZipEntry]:
    """Return the records that can be found without the zip directory, without the top directory's
    name.

    Raises:
        BadFile: two have one name.
    """
    records: dict[str, ZipEntry] = {}
    for record in _records(window):
        _, _, name = record.name.partition("/")
        if name in records:
            raise BadFile(f"{window}: it has {record.name!r} twice")
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
    """Return (CRC-32, size of the bytes from `begin`, end) of the descriptor that matches its
    position."""
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
