"""TensorBoard's event files, written without TensorBoard.

A file is a sequence of TFRecords (length, CRC-32C of it, data, CRC-32C of that), each of one
`Event` protocol buffer; the fields that are needed of it are few. Standard library only, and no
newer syntax than that of Python 3.9: programs of users write with this too.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from zerotools.io.telemetry.append import write_whole

_VERSION = "brain.Event:2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_START = b"\x08\x01"  # SessionLog(status=START): steps from this one on are void


class EventFile:
    """The scalars of one attempt at a run, in a new file below `directory`."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Make the file. Raises OSError: it cannot be made."""
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        path = directory / name
        self._file = os.open(path, flags, 0o644)
        start = _field(_STEP, _VARINT, first_step) + _field(_SESSION_LOG, _BYTES, _START)
        try:
            self._write(_field(_FILE_VERSION, _BYTES, _VERSION.encode()), now)
            self._write(start, now)
        except OSError:
            os.close(self._file)  # the next step tries again
            path.unlink()
            raise

    def append(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write what `step` came to. Raises OSError."""
        values = b"".join(_value(tag, scalar) for tag, scalar in scalars.items())
        event = _field(_STEP, _VARINT, step) + _field(_SUMMARY, _BYTES, values)
        self._write(event, time.time())

    def _write(self, event: bytes, now: float) -> None:
        write_whole(self._file, tfrecord(_field(_WALL_TIME, _FIXED64, now) + event))

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)


def tfrecord(data: bytes) -> bytes:
    """Return one TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _value(tag: str, scalar: float) -> bytes:
    value = _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, scalar)
    return _field(1, _BYTES, value)


def _field(number: int, kind: int, value: int | float | bytes) -> bytes:
    """Return one field of a protocol buffer."""
    key = _varint(number << 3 | kind)
    if kind == _FIXED64:
        return key + struct.pack("<d", value)
    if kind == _FIXED32:
        return key + struct.pack("<f", value)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    return key + _varint(int(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> tuple[int, ...]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(entry, range(256)))


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32 with the polynomial of Castagnoli."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
