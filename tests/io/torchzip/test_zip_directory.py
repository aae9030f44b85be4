from __future__ import annotations

import struct
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.torchzip.archives import archive_bytes, opened, zip_bytes
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.zip_directory import read_directory, read_entry

PARTS = st.text("abcdefé", min_size=1, max_size=5)
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: "/".join(["top", *parts]))
RECORDS = st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=6)


@given(RECORDS, st.binary(max_size=99), st.binary(max_size=99))
def test_records_of_a_zip_anywhere_in_a_file(
    records: dict[str, bytes], before: bytes, after: bytes
) -> None:
    data = zip_bytes(records)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(before + data + after)
        with opened(path, len(before), len(data)) as window:
            found = read_directory(window)
            read = {f"top/{name}": read_entry(window, record) for name, record in found.items()}
    assert read == records


def _read_all(window: FileRange) -> None:
    for record in read_directory(window).values():
        read_entry(window, record)


ARCHIVE = archive_bytes({"a": [1, 2]}, [b"payload"])


@given(st.data())
def test_a_damaged_zip_gives_our_errors_only(data: st.DataObject) -> None:
    damaged = bytearray(ARCHIVE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(damaged[: cut if cut % 3 == 0 else None])
        with opened(path) as window, suppress(ZerotoolsError):
            _read_all(window)


def _refusal(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "file.pt"
    path.write_bytes(data)
    with opened(path) as window, pytest.raises(ZerotoolsError) as caught:
        _read_all(window)
    return f"{caught.type.__name__}: {caught.value}"


def test_compressed_records_are_refused_by_name(tmp_path: Path) -> None:
    data = zip_bytes({"a/data.pkl": b"x" * 100}, zipfile.ZIP_DEFLATED)
    assert "Unsupported" in (said := _refusal(tmp_path, data))
    assert "'a/data.pkl' is compressed" in said


def test_a_flipped_bit_is_damage_and_no_kind_of_zip_that_is_not_read(tmp_path: Path) -> None:
    """The record's own header contradicts a directory that says "compressed" or "encrypted"."""
    begin = ARCHIVE.index(b"PK\x01\x02")
    kinds = set()
    for bit in range(8 * begin, 8 * len(ARCHIVE)):
        damaged = bytearray(ARCHIVE)
        damaged[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "file.pt"
        path.write_bytes(damaged)
        with opened(path) as window:
            try:
                _read_all(window)
            except ZerotoolsError as error:
                kinds.add(type(error))
    assert kinds == {BadFile}


@pytest.mark.parametrize("size", [0, 1, 21, 22, 100, len(ARCHIVE) // 2, len(ARCHIVE) - 1])
def test_a_truncated_archive_is_refused(tmp_path: Path, size: int) -> None:
    assert "truncated" in _refusal(tmp_path, ARCHIVE[:size])


def test_a_name_that_is_there_twice(tmp_path: Path) -> None:
    data = zip_bytes({"a/x": b"1", "b/x": b"2"})
    assert "twice" in _refusal(tmp_path, data)


def _patched(at_signature: bytes, offset: int, layout: str, value: int) -> bytes:
    data = bytearray(zip_bytes({"a/x": b"12345678"}))
    struct.pack_into(layout, data, data.index(at_signature) + offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        _patched(b"PK\x05\x06", 16, "<L", 10**9),
        _patched(b"PK\x05\x06", 12, "<L", 10**9),
        _patched(b"PK\x05\x06", 16, "<L", 3),
        _patched(b"PK\x01\x02", 42, "<L", 2**31),
        _patched(b"PK\x01\x02", 42, "<L", 7),
        _patched(b"PK\x01\x02", 28, "<H", 60000),
        _patched(b"PK\x03\x04", 28, "<H", 60000),
        _patched(b"PK\x05\x06", 8, "<H", 2),
        _patched(b"PK\x05\x06", 16, "<L", 0xFFFFFFFF),
        _patched(b"PK\x01\x02", 42, "<L", 0xFFFFFFFF),
    ],
    ids=[
        "directory outside", "directory too large", "directory elsewhere", "record outside",
        "record elsewhere", "name too long", "header too long", "another count",
        "zip64 end missing", "zip64 sizes missing",
    ],
)  # fmt: skip
def test_numbers_that_lead_elsewhere(tmp_path: Path, data: bytes) -> None:
    assert str(tmp_path) in _refusal(tmp_path, data)


def test_sizes_are_checked_before_anything_is_allocated(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": b"12345678"}))
    at = data.index(b"PK\x01\x02")
    struct.pack_into("<LL", data, at + 20, 2**31, 2**31)
    assert "reaches beyond" in _refusal(tmp_path, bytes(data))


def test_an_encrypted_record(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": b"12345678"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in _refusal(tmp_path, bytes(data))


def test_a_window_beyond_the_end_says_where_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    with opened(path, 20, 8) as window, pytest.raises(ZerotoolsError, match="ends at byte 10, "):
        window.read(0, 4)
