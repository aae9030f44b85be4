"""The records of a torch.save zip, keyed by name, with the positions of their bytes.

The zip may be a whole file or a range of a file (a `.distcp` file is a sequence of zips). Every
number in it is checked against the length of that range before it is used. torch stores records
uncompressed, and writes neither comments nor encryption. A zip with compression, comments or
encryption is refused, because the bytes of a tensor cannot be addressed in compressed data.

Layout: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.metadata_memory_limit import may_be_read
from zerotools.io.torchzip.file_range import FileRange

_LOCAL, _LAST = b"PK\x03\x04", b"PK\x05\x06"
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<8s2H4s3L4H2x2L")
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_LARGEST_DIRECTORY = 2**28
_ENTRY_SHARE = 2  # an entry needs more memory per byte than a part of a pickle
_READ_BYTES = 2**20
_TAIL = 1024
_COPY_AGAIN = "copy or download it again"
_UNREAD_FLAGS = 1 | 1 << 5 | 1 << 6 | 1 << 13
_IS_DIRECTORY = 0x10  # torch would return uninitialised memory for the record's bytes
HAS_DESCRIPTOR = 8  # sizes and CRC are in a descriptor after the bytes


class ZipEntry(NamedTuple):
    """One record of a zip: `length` bytes with the expected CRC-32 `crc`.

    `header` is the offset of its local header in the window. `limit` is the offset of the next
    header or of the zip directory. `has_crc` is False if the archive was written without checksums,
    as after `torch.serialization.set_crc32_options(False)`: then `crc` is 0 in all records.
    """

    name: str
    header: int
    length: int
    crc: int
    limit: int
    has_crc: bool = True


# Name, offset of the local header, length and CRC-32, from the directory.
_Entry = tuple[str, int, int, int]
_header = itemgetter(1)


def read_directory(window: FileRange) -> dict[str, ZipEntry]:
    """Return the records of the zip that fills `window`, keyed by name without the top directory.

    Raises:
        BadFile: the window is not a zip, is truncated, or its numbers contradict one another.
        Unsupported: a record is compressed or encrypted.
    """
    tail_at = max(0, window.length - _TAIL)
    tail = window.read(tail_at, window.length - tail_at)
    if len(tail) < _END.size or tail[-_END.size :][:4] != _LAST:
        raise BadFile(
            f"{window} does not end in a zip directory: it is truncated, or not a file of "
            "torch.save; copy or download it again"
        )
    begin, size, count, end = _find_directory(window, tail)
    if begin + size != end or size > _LARGEST_DIRECTORY:
        raise BadFile(
            f"{window}: its zip directory of {size} bytes at byte {begin} does not end at byte "
            f"{end}, where the end record begins: bytes were removed or added; {_COPY_AGAIN}"
        )
    if not may_be_read(_ENTRY_SHARE * size, window.other_data_size(size)):
        raise BadFile(
            f"{window}: its zip directory has {size} bytes, more than in any real checkpoint: the "
            "file was made to fill the memory; do not use it"
        )
    data = tail[begin - tail_at :][:size] if begin >= tail_at else window.read(begin, size)
    entries = list(_entries(window, data, begin))
    inner = [name.partition("/")[2] for name, *_ in entries]
    if len(set(inner)) != len(inner):
        raise BadFile(
            f"{window}: its zip directory lists {_repeated(entries, inner)!r} twice; {_COPY_AGAIN}"
        )
    if len(entries) != count:
        raise BadFile(
            f"{window}: its zip directory lists {len(entries)} records, but should list {count}; "
            f"{_COPY_AGAIN}"
        )
    limits = _limits(window, entries)
    has_crc = any(crc for _, _, _, crc in entries)
    return {
        short: ZipEntry(name, header, length, crc, limits.get(header, begin), has_crc)
        for short, (name, header, length, crc) in zip(inner, entries, strict=True)
    }


def frame_of(place: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the two ranges [begin, end) that `is_framed` will read. `place` is the offset and the
    length of an archive, in bytes.
    """
    at, length = place
    return (at, at + len(_LOCAL)), (max(at, at + length - _END.size), at + length)


def is_framed(window: FileRange) -> bool:
    """Return whether `window` begins with the header of a zip record and ends with the end record
    of a zip.

    Raises:
        BadFile: the file ends before the window ends.
    """
    if window.length < LOCAL_HEADER.size + _END.size:
        return False
    end = window.read(window.length - _END.size, _END.size)
    return window.read(0, len(_LOCAL)) == _LOCAL and end[:4] == _LAST and end[-2:] == bytes(2)


def payload_of(window: FileRange, record: ZipEntry) -> int:
    """Read the local header of a record, and return the offset of the record's first byte in the
    window.

    Raises:
        BadFile: the header is missing, or has another name or size than the zip directory.
    """
    expected = record.name.encode()
    data = window.read(record.header, LOCAL_HEADER.size + len(expected))
    signature, _, flags, method, _, _, crc, packed, length, name, extra = LOCAL_HEADER.unpack_from(
        data
    )
    if signature != _LOCAL:
        raise BadFile(
            f"{window}: record {record.name!r} has no header at byte {record.header}; {_COPY_AGAIN}"
        )
    if name != len(expected) or data[LOCAL_HEADER.size :] != expected:
        raise BadFile(
            f"{window}: according to the zip directory, record {record.name!r} begins at byte "
            f"{record.header}, but another header is there: the file is damaged; {_COPY_AGAIN}"
        )
    said = (method, crc, packed, length)
    sizes = {record.length, _FULL32}
    if not flags & HAS_DESCRIPTOR and (
        method or crc != record.crc or not {packed, length} <= sizes
    ):
        raise BadFile(
            f"{window}: record {record.name!r} has {record.length} bytes and CRC-32 "
            f"{record.crc:08x} according to the zip directory, but its header has (method, CRC-32, "
            f"sizes) {said}; {_COPY_AGAIN}"
        )
    at = record.header + LOCAL_HEADER.size + int(name) + int(extra)
    if at + record.length > record.limit:
        raise BadFile(
            f"{window}: record {record.name!r} of {record.length} bytes at byte {at} reaches "
            f"beyond byte {record.limit}, where the next record or the zip directory begins; "
            f"{_COPY_AGAIN}"
        )
    return at


def read_entry(window: FileRange, record: ZipEntry) -> bytes:
    """Return the bytes of a record. The caller has checked that `record.length` is not too large.

    Raises:
        BadFile: the bytes have another CRC-32 than the zip directory records.
    """
    data = window.read(payload_of(window, record), record.length)
    _check_crc(window, record, zlib.crc32(data), _COPY_AGAIN)
    return data


def check_entry(window: FileRange, record: ZipEntry, advice: str = _COPY_AGAIN) -> None:
    """Read the bytes of a record block by block, and check its CRC-32. Raises the errors of
    `read_entry`, with `advice` in the message.
    """
    crc, begin = 0, payload_of(window, record)
    for at in range(0, record.length, _READ_BYTES):
        crc = zlib.crc32(window.read(begin + at, min(_READ_BYTES, record.length - at)), crc)
    _check_crc(window, record, crc, advice)


def _check_crc(window: FileRange, record: ZipEntry, found: int, advice: str) -> None:
    if record.has_crc and found != record.crc:
        raise BadFile(
            f"{window}: record {record.name!r} has CRC-32 {found:08x}, but the zip directory has "
            f"{record.crc:08x}: its bytes have changed since it was saved; {advice}"
        )


def _repeated(entries: Sequence[_Entry], inner: Sequence[str]) -> str:
    seen: set[str] = set()
    for (name, *_), short in zip(entries, inner, strict=True):
        if short in seen:
            return name
        seen.add(short)
    raise AssertionError("all names are different")


def _limits(window: FileRange, entries: Sequence[_Entry]) -> dict[int, int]:
    """Return the offset before which each entry must end, which is the offset of the next header.
    The result is keyed by the offset of the entry's own header. The last entry is left out.

    Raises:
        BadFile: two entries overlap even if their headers, which are not read yet, are as short as
            possible.
    """
    limits = {}
    for (name, header, length, _), (other, begin, _, _) in pairwise(sorted(entries, key=_header)):
        end = header + LOCAL_HEADER.size + len(name.encode()) + length
        if end > begin:
            raise BadFile(
                f"{window}: record {name!r} reaches to byte {end}, but {other!r} begins at byte "
                f"{begin}, so they overlap; {_COPY_AGAIN}"
            )
        limits[header] = begin
    return limits


def _find_directory(window: FileRange, tail: bytes) -> tuple[int, int, int, int]:
    """Return (offset, size, number of entries) of the central directory, and the offset at which it
    must end.
    """
    _, disk, first_disk, here, count, size, begin, comment = _END.unpack(tail[-_END.size :])
    if comment or disk != first_disk or here != count:
        raise BadFile(
            f"{window}: the end of its zip directory announces a comment of {comment} bytes, or "
            f"several disks, but the file has neither: it is damaged; {_COPY_AGAIN}"
        )
    full = begin == _FULL32 or size == _FULL32 or count == _FULL16
    locator_at = window.length - _END.size - _END64_LOCATOR.size
    locator = tail[-_END.size - _END64_LOCATOR.size : -_END.size]
    if len(locator) < _END64_LOCATOR.size or locator[:4] != b"PK\x06\x07":
        if full:
            raise BadFile(f"{window}: its zip64 locator is damaged; {_COPY_AGAIN}")
        return begin, size, count, window.length - _END.size
    # torch always writes one, with numbers in it only if they are needed.
    _, disk, end64, disks = _END64_LOCATOR.unpack(locator)
    if end64 + _END64.size != locator_at or disk or disks > 1:
        raise BadFile(f"{window}: its zip64 locator is damaged; {_COPY_AGAIN}")
    signature, _, _, _, disk, first_disk, here, *numbers = _END64.unpack(
        window.read(end64, _END64.size)
    )
    if signature != b"PK\x06\x06" or disk != first_disk or here != numbers[0]:
        raise BadFile(f"{window}: its zip64 directory is damaged; {_COPY_AGAIN}")
    # Programs may use the numbers of the zip64 end or of the classic end, so both must agree.
    narrow = ((count, _FULL16), (size, _FULL32), (begin, _FULL32))
    if any(said not in (wide, most) for (said, most), wide in zip(narrow, numbers, strict=True)):
        raise BadFile(
            f"{window}: its zip directory has {size} bytes at byte {begin} according to its last "
            f"record, but {numbers[1]} at byte {numbers[2]} according to its zip64 record: the "
            f"file is damaged; {_COPY_AGAIN}"
        )
    count, size, begin = numbers
    return begin, size, count, end64


def _entries(window: FileRange, data: bytes, limit: int) -> Iterator[_Entry]:
    """Yield the entries of the central directory. `limit` is the offset of the directory, so all
    records must end before it.
    """
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size or data[at : at + 4] != b"PK\x01\x02":
            raise BadFile(f"{window}: its zip directory is damaged at byte {at}; {_COPY_AGAIN}")
        # Unpacked in one step, because a DCP checkpoint has many thousand entries.
        _, flags, method, _, crc, packed, length, name_size, extra_size, comment_size, *rest = (
            _ENTRY.unpack_from(data, at)
        )
        disk, attributes, header = rest
        extra_at = at + _ENTRY.size + name_size
        name = _name(window, data[at + _ENTRY.size : extra_at])
        at = extra_at + extra_size + comment_size
        if length == _FULL32 or packed == _FULL32 or header == _FULL32:
            extra = data[extra_at : extra_at + extra_size]
            length, packed, header = _zip64(window, name, extra, length, packed, header)
        if "/code/" in name:
            raise Unsupported(
                f"{window} is a TorchScript program (torch.jit.save), not a state dict; load it, "
                "and save its state_dict() with torch.save"
            )
        if method != 0 or packed != length:
            _refuse_contradiction(window, name, header, "compressed")
            raise Unsupported(
                f"{window}: record {name!r} is compressed, so its bytes cannot be addressed; "
                "save it again with torch.save"
            )
        if disk or attributes & _IS_DIRECTORY:
            raise BadFile(
                f"{window}: record {name!r} is marked as a directory or as on another disk, which "
                f"torch.save never writes: the file is damaged; {_COPY_AGAIN}"
            )
        if flags & _UNREAD_FLAGS:
            _refuse_contradiction(window, name, header, "encrypted or a patch")
            raise Unsupported(
                f"{window}: record {name!r} is encrypted, or stored as a patch, which zerotools "
                "does not read; save it again with torch.save"
            )
        if header + LOCAL_HEADER.size + length > limit:
            raise BadFile(
                f"{window}: record {name!r} of {length} bytes at byte {header} reaches beyond byte "
                f"{limit}, where the zip directory begins; {_COPY_AGAIN}"
            )
        yield name, header, length, crc
    if at != len(data):
        raise BadFile(f"{window}: its zip directory ends inside an entry; {_COPY_AGAIN}")


def _refuse_contradiction(window: FileRange, name: str, header: int, kind: str) -> None:
    """Raise an error if the zip directory says that a record is compressed or encrypted, and the
    record's own header contradicts this.

    Raises:
        BadFile: the header shows that the bytes are stored uncompressed.
    """
    if header + LOCAL_HEADER.size > window.length:
        return
    own = LOCAL_HEADER.unpack(window.read(header, LOCAL_HEADER.size))
    signature, _, flags, method, _, _, _, packed, length, *_ = own
    is_plain = not method and not flags & _UNREAD_FLAGS
    if signature == _LOCAL and is_plain and (packed == length or flags & HAS_DESCRIPTOR):
        raise BadFile(
            f"{window}: record {name!r} is {kind} according to the zip directory, but not "
            f"according to its header: the file is damaged; {_COPY_AGAIN}"
        )


def _name(window: FileRange, data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError:
        raise BadFile(
            f"{window}: the name {data!r:.200} of a record is not UTF-8; {_COPY_AGAIN}"
        ) from None
    if not _is_usual(name):
        raise BadFile(
            f"{window}: torch.save never writes a record {name!r:.200}: the file is damaged, or "
            "made to mislead; do not use it"
        )
    return name


@lru_cache(maxsize=256)
def _is_usual(name: str) -> bool:
    """Return whether torch.save could use this name for a record. Archives inside a `.distcp` file
    have the same names.
    """
    folder, _, inner = name.partition("/")
    return not inner or (folder not in ("", ".", "..") and stays_below_root(inner))


def _zip64(
    window: FileRange, name: str, extra: bytes, length: int, packed: int, header: int
) -> tuple[int, int, int]:
    """Return `length`, `packed` and `header` of an entry. Each of them that has its largest 32-bit
    value is replaced by the next 8 bytes of the zip64 extra field in `extra`.
    """
    fields = [length, packed, header]
    missing = [i for i, value in enumerate(fields) if value == _FULL32]
    at = 0
    while at + 4 <= len(extra):
        tag, size = struct.unpack_from("<2H", extra, at)
        if tag == 1 and size >= 8 * len(missing) and at + 4 + size <= len(extra):
            values = struct.unpack_from(f"<{len(missing)}Q", extra, at + 4)
            for i, value in zip(missing, values, strict=True):
                fields[i] = value
            return fields[0], fields[1], fields[2]
        at += 4 + size
    raise BadFile(f"{window}: record {name!r} has no zip64 sizes; {_COPY_AGAIN}")
