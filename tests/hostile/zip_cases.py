"""Zips of torch.save that lie: about where records are, how large, and what they are called."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.hostile.archives import state_dict
from tests.hostile.case import Case, Make
from tests.io.torchzip.archives import zip_bytes

MODEL = "pytorch_model.bin"
TERABYTE = 2**40
PAIR = {"a/data.pkl": b"\x80\x02}.", "a/data/0": b"1" * 40}


def file_of(data: bytes) -> Make:
    """A model in one file."""

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(data)
        return directory

    return make


def changed(change: Callable[[bytearray], None]) -> Make:
    """A sound zip, after `change`."""
    data = bytearray(zip_bytes(PAIR))
    change(data)
    return file_of(bytes(data))


def _over_one_another(data: bytearray) -> None:
    struct.pack_into("<L", data, data.rindex(b"PK\x01\x02") + 42, 5)


def _header_over_the_next(data: bytearray) -> None:
    struct.pack_into("<H", data, 28, 60)  # an extra field that the directory does not know


def _terabyte(data: bytearray) -> None:
    entry = data.rindex(b"PK\x01\x02")
    for at in (20, 24):
        struct.pack_into("<L", data, entry + at, 0xFFFFFFFE)


def _encrypted(data: bytearray) -> None:
    struct.pack_into("<H", data, data.rindex(b"PK\x01\x02") + 8, 1)


def _a_directory(data: bytearray) -> None:
    struct.pack_into("<L", data, data.rindex(b"PK\x01\x02") + 38, 0x10)


def _many_entries(data: bytearray) -> None:
    struct.pack_into("<2H", data, data.rindex(b"PK\x05\x06") + 8, 60000, 60000)


def zip64(begin: int, size: int, count: int = 1, length: int = 8) -> bytes:
    """A zip of one record whose numbers are all in zip64 fields, and say what they are given."""
    name, data = b"a/data.pkl", b"12345678"
    sizes = (0, 8, 8, len(name), 0)
    head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 0, 0, 0, 0, 0, *sizes) + name + data
    full = 0xFFFFFFFF
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 0, 0, 0, 0, 0, 0, 0, full, full, len(name),
                        28, 0, 0, 0, 0, full) + name  # fmt: skip
    entry += struct.pack("<2H3Q", 1, 24, length, length, 0)
    at = len(head) + len(entry)
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0, 0, 0, 0, count, count, size, begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
    return head + entry + wide + locator + end


def _two_directories(data: bytearray) -> None:
    """The last record and the zip64 record put the directory at two places."""
    end = data.rindex(b"PK\x05\x06")
    struct.pack_into("<L", data, end + 16, struct.unpack_from("<L", data, end + 16)[0] - 1)


def _torchs_own(change: Callable[[bytearray], None]) -> Make:
    data = bytearray(state_dict({}))
    change(data)
    return file_of(bytes(data))


CASES = (
    Case(
        "a bomb of 100 MB in 100 kB",
        file_of(zip_bytes({"a/data.pkl": bytes(10**8)}, zipfile.ZIP_DEFLATED)),
        "record 'a/data.pkl' is compressed, so its bytes cannot be addressed",
        status=4,
    ),
    Case("records over one another", changed(_over_one_another), "they overlap"),
    Case(
        "a header that reaches into the next record",
        changed(_header_over_the_next),
        r"reaches beyond byte \d+, where the next record or the zip directory begins",
    ),
    Case(
        "a record of 4 GB in a file of 300 bytes",
        changed(_terabyte),
        "where the zip directory begins",
    ),
    Case(
        "a zip64 record of a terabyte",
        file_of(zip64(48, 84, length=TERABYTE)),
        rf"record 'a/data.pkl' of {TERABYTE} bytes at byte 0 reaches beyond byte",
    ),
    Case("a zip64 directory at 2 ** 63", file_of(zip64(2**63, 84)), "bytes were removed or added"),
    Case("a zip64 directory of 2 ** 63", file_of(zip64(48, 2**63)), "bytes were removed or added"),
    Case("two directories", _torchs_own(_two_directories), "the file is damaged"),
    Case(
        "more entries than there are",
        changed(_many_entries),
        "lists 2 records, but should list 60000",
    ),
    Case(
        "a record above the directory",
        file_of(zip_bytes({**PAIR, "a/../../evil": b"x"})),
        r"torch.save never writes a record 'a/\.\./\.\./evil'",
    ),
    Case(
        "a record with an absolute name",
        file_of(zip_bytes({**PAIR, "/etc/evil": b"x"})),
        "torch.save never writes a record '/etc/evil'",
    ),
    Case(
        "a record of a name that is not text",
        file_of(zip_bytes(PAIR).replace(b"a/data/0", b"a/data/\xff")),
        "is not UTF-8",
    ),
    Case(
        "an encrypted record", changed(_encrypted), "is encrypted or a patch according to the zip"
    ),
    Case("a record that is a directory", changed(_a_directory), "is marked as a directory"),
    Case(
        "the same record twice",
        file_of(zip_bytes({**PAIR, "b/data.pkl": b"\x80\x02N."})),
        "lists 'b/data.pkl' twice",
    ),
    Case(
        "a script before the zip", file_of(b"#!/bin/sh\n" + zip_bytes(PAIR)), "does not end at byte"
    ),
)
