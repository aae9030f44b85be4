"""The records of a torch.save zip, by name: where each one's bytes lie.

The zip may be a whole file or a stretch of one (a `.distcp` file is many, back to back). Every
number in it is checked against the length of that stretch before it is used. torch stores records
uncompressed and writes neither comments nor encryption; what does is refused, because compressed
bytes cannot be addressed.

Layout: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.window import Window

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_LARGEST_DIRECTORY = 2**28
_TAIL = 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One entry: `length` bytes, whose CRC-32 should be `crc`; `header` is its local header's
    offset in the window."""

    name: str
    header: int
    length: int
    crc: int


def read_directory(window: Window) -> dict[str, Record]:
    """The records of the zip that fills `window`, without the top directory's name.

    Raises:
        BadFile: it is no zip, is cut short, or its numbers lead outside it.
        Unsupported: a record is compressed or encrypted.
    """
    tail_at = max(0, window.length - _TAIL)
    tail = window.read(tail_at, window.length - tail_at)
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\x05\x06":
        raise BadFile(f"{window} does not end in a zip directory: it is cut short or no torch file")
    begin, size, count = _find_directory(window, tail)
    if begin + size > window.length or size > _LARGEST_DIRECTORY:
        raise BadFile(f"{window}: its zip directory of {size} bytes at {begin} does not fit in it")
    data = tail[begin - tail_at :][:size] if begin >= tail_at else window.read(begin, size)
    records: dict[str, Record] = {}
    for record in _entries(window, data, begin):
        _, _, name = record.name.partition("/")
        if name in records:
            raise BadFile(f"{window}: its zip directory lists {record.name!r} twice")
        records[name] = record
    if len(records) != count:
        raise BadFile(f"{window}: its zip directory lists {len(records)} records, not {count}")
    return records


def payload_of(window: Window, record: Record) -> int:
    """Offset of the record's first byte in the window, read from its local header."""
    signature, _, _, _, _, _, _, _, _, name, extra = _LOCAL.unpack(
        window.read(record.header, _LOCAL.size)
    )
    if signature != b"PK\x03\x04":
        raise BadFile(f"{window}: record {record.name!r} has no header at byte {record.header}")
    at = record.header + _LOCAL.size + int(name) + int(extra)
    if at + record.length > window.length:
        raise BadFile(
            f"{window}: record {record.name!r} of {record.length} bytes at {at} reaches beyond "
            f"the archive's {window.length} bytes"
        )
    return at


def read_record(window: Window, record: Record) -> bytes:
    """The record's bytes. The caller has bounded `record.length`."""
    return window.read(payload_of(window, record), record.length)


def _find_directory(window: Window, tail: bytes) -> tuple[int, int, int]:
    """(offset, size, number of entries) of the central directory."""
    _, disk, first_disk, here, count, size, begin, comment = _END.unpack(tail[-_END.size :])
    if comment or disk != first_disk or here != count:
        raise Unsupported(f"{window} is a zip with a comment or several disks, not a torch file")
    locator_at = window.length - _END.size - _END64_LOCATOR.size
    if locator_at < 0 or (begin != _FULL32 and size != _FULL32 and count != _FULL16):
        return begin, size, count
    signature, _, end64, _ = _END64_LOCATOR.unpack(window.read(locator_at, _END64_LOCATOR.size))
    if signature != b"PK\x06\x07" or end64 + _END64.size > locator_at:
        raise BadFile(f"{window}: its zip64 locator is damaged")
    signature, _, _, _, _, _, _, count, size, begin = _END64.unpack(window.read(end64, _END64.size))
    if signature != b"PK\x06\x06":
        raise BadFile(f"{window}: its zip64 directory is damaged")
    return begin, size, count


def _entries(window: Window, data: bytes, limit: int) -> Iterator[Record]:
    """The central directory's entries; `limit` is where it begins, so records end before it."""
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size or data[at : at + 4] != b"PK\x01\x02":
            raise BadFile(f"{window}: its zip directory is damaged at byte {at}")
        fields = _ENTRY.unpack_from(data, at)
        flags, method, crc, packed, length = fields[3], fields[4], *fields[7:10]
        name_size, extra_size, comment_size, header = *fields[10:13], fields[16]
        at += _ENTRY.size
        name = _name(window, data[at : at + name_size])
        extra = data[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size + comment_size
        length, packed, header = _zip64(window, name, extra, length, packed, header)
        if method != 0 or packed != length:
            raise Unsupported(
                f"{window}: record {name!r} is compressed, so its bytes cannot be addressed; "
                "save it again with torch.save"
            )
        if flags & 1:
            raise Unsupported(f"{window}: record {name!r} is encrypted")
        if header + _LOCAL.size + length > limit:
            raise BadFile(
                f"{window}: record {name!r} of {length} bytes at {header} reaches beyond "
                f"byte {limit}, where the directory begins"
            )
        yield Record(name, header, length, crc)
    if at != len(data):
        raise BadFile(f"{window}: its zip directory ends inside an entry")


def _name(window: Window, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadFile(f"{window}: a record's name {data!r} is not UTF-8") from None


def _zip64(
    window: Window, name: str, extra: bytes, length: int, packed: int, header: int
) -> tuple[int, int, int]:
    """Replace each field that is full by its 8 bytes of the zip64 extra field, in that order."""
    fields = [length, packed, header]
    wanted = [i for i, value in enumerate(fields) if value == _FULL32]
    if not wanted:
        return length, packed, header
    at = 0
    while at + 4 <= len(extra):
        tag, size = struct.unpack_from("<2H", extra, at)
        if tag == 1 and size >= 8 * len(wanted) and at + 4 + size <= len(extra):
            values = struct.unpack_from(f"<{len(wanted)}Q", extra, at + 4)
            for i, value in zip(wanted, values, strict=True):
                fields[i] = value
            return fields[0], fields[1], fields[2]
        at += 4 + size
    raise BadFile(f"{window}: record {name!r} has no zip64 sizes")
