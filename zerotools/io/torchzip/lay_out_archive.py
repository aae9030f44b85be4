"""The position of every byte of a new torch.save archive, before any storage is copied.

The layout is that of torch (caffe2/serialize/inline_container.cc). Records are stored without
compression. Each record has a data descriptor (flag 8). Its "FB" extra field is a padding, so that
the payload begins at a multiple of 64 bytes from the start of the archive. The central directory
follows, always with a zip64 end. Sizes from 4 GiB are in zip64 extra fields. The CRC-32 of a
payload is known only after the payload was copied. So the layout has the two positions at which
this CRC-32 is written later: in the descriptor and in the directory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

ALIGNMENT = 64
FOLDER = "archive"
"""The name of the folder inside an archive that torch writes to an open file. If torch writes to a
path, the folder is named after the file, without its ending.
"""
_FLAGS = 0x0808
_FULL = 0xFFFFFFFF
# The files of a thousand ranks may have equal pickles, so pickles of at least this size (in bytes)
# are not copied.
_SHARED = 4096


@dataclass(frozen=True, slots=True)
class Payload:
    """`length` bytes of a storage that are copied to `offset` later. Their CRC-32 is then written
    at the offsets `crc_at`.
    """

    offset: int
    length: int
    crc_at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """The layout of an archive of `length` bytes.

    `literals` has all bytes except the payloads, as pairs (offset, bytes). Offsets are counted from
    the start of the archive.
    """

    length: int
    literals: tuple[tuple[int, bytes], ...]
    payloads: tuple[Payload, ...]


def lay_out(
    pickle: bytes,
    storages: Sequence[int],
    crcs: Mapping[int, int] = MappingProxyType({}),
    *,
    folder: str = FOLDER,
) -> ArchiveLayout:
    """Return the layout of an archive with one pickle and its storages. Storage number i has
    `storages[i]` bytes.

    `crcs` has the CRC-32 of each storage with known bytes, keyed by number. The CRC-32 of other
    storages is computed when the archive is written. All records are in the directory `folder`.
    Layouts of the same `pickle` share its bytes.
    """
    writer = _Writer(folder)
    writer.record("data.pkl", pickle)
    writer.record(".format_version", b"1")
    writer.record(".storage_alignment", str(ALIGNMENT).encode())
    writer.record("byteorder", b"little")
    for number, length in enumerate(storages):
        writer.hole(f"data/{number}", length, crcs.get(number, 0))
    writer.record("version", b"3\n")
    return writer.finish()


class _Writer:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._at = 0
        self._text: list[bytes] = []
        self._text_at = 0
        self._literals: list[tuple[int, bytes]] = []
        self._entries: list[tuple[bytes, int, int, int]] = []
        self._holes: list[tuple[int, int, int, int]] = []

    def record(self, name: str, data: bytes) -> None:
        crc = crc32(data)
        self._header(name, len(data), crc)
        if len(data) < _SHARED:
            self._write(data)
        else:
            self._flush()
            self._literals.append((self._at, data))
            self._at = self._text_at = self._at + len(data)
        self._descriptor(len(data), crc)

    def hole(self, name: str, length: int, crc: int) -> None:
        """Add a record with bytes that are copied later. An empty record has no such bytes."""
        entry = len(self._entries)
        self._header(name, length, crc)
        if length:
            self._flush()
            at = self._at
            self._at = self._text_at = at + length
            self._holes.append((entry, at, length, self._at + 4))
        self._descriptor(length, crc)

    def finish(self) -> ArchiveLayout:
        begin, crc_at = self._at, []
        for name, header, length, crc in self._entries:
            crc_at.append(self._at + 16)
            self._write(_entry(name, header, length, crc))
        self._write(_end(begin, self._at - begin, len(self._entries)))
        self._flush()
        payloads = tuple(
            Payload(at, length, (descriptor, crc_at[entry]))
            for entry, at, length, descriptor in self._holes
        )
        return ArchiveLayout(self._at, tuple(self._literals), payloads)

    def _header(self, name: str, length: int, crc: int) -> None:
        full = f"{self._folder}/{name}".encode()
        self._entries.append((full, self._at, length, crc))
        wide = struct.pack("<HHQQ", 1, 16, length, length) if length >= _FULL else b""
        size = _FULL if wide else 0
        plain = 30 + len(full) + len(wide) + 4
        padding = -(self._at + plain) % ALIGNMENT
        extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        fixed = (b"PK\x03\x04", 0, _FLAGS, 0, 0, 0, 0, size, size, len(full), len(extra))
        self._write(struct.pack("<4s5H3L2H", *fixed) + full + extra)

    def _descriptor(self, length: int, crc: int) -> None:
        sizes = struct.pack("<QQ" if length >= _FULL else "<LL", length, length)
        self._write(b"PK\x07\x08" + struct.pack("<L", crc) + sizes)

    def _write(self, data: bytes) -> None:
        self._text.append(data)
        self._at += len(data)

    def _flush(self) -> None:
        if self._text:
            self._literals.append((self._text_at, b"".join(self._text)))
        self._text = []
        self._text_at = self._at


def _entry(name: bytes, header: int, length: int, crc: int) -> bytes:
    """Return one entry of the central directory. The CRC-32 is at byte 16 of the entry."""
    wide = [value for value in (length, length, header) if value >= _FULL]
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    size, at = min(length, _FULL), min(header, _FULL)
    fields = (b"PK\x01\x02", 0, 0, _FLAGS, 0, 0, 0, crc, size, size)
    rest = (len(name), len(extra), 0, 0, 0, 0, at)
    return struct.pack("<4s6H3L5H2L", *fields, *rest) + name + extra


def _end(begin: int, size: int, count: int) -> bytes:
    """Return the end of the archive: the zip64 end of the directory, its locator, and the classic
    end.
    """
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 798, 45, 0, 0, count, count, size, begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + size, 1)
    narrow = (min(count, 0xFFFF), min(count, 0xFFFF), min(size, _FULL), min(begin, _FULL), 0)
    return wide + locator + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, *narrow)
