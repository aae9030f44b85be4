"""Zips of torch.save whose parts contradict one another, or whose bytes have changed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, TORCH
from tests.io.torchzip.archives import archive_bytes, opened, zip_bytes
from zerotools import formats
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.zip_directory import (
    check_entry,
    payload_of,
    read_directory,
    read_entry,
)

GOLDEN = TORCH / "training-file" / "checkpoint" / "checkpoint.pt"
ARCHIVE = archive_bytes({"weight": [1, 2], "bias": 3}, [b"payload"])


def test_a_flip_in_a_pickle_does_not_rename_a_tensor(tmp_path: Path) -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[data.index(b"weight")] ^= 1
    (tmp_path / "checkpoint.pt").write_bytes(data)
    with pytest.raises(BadFile, match=r"data.pkl' has CRC-32 .* its bytes have changed since"):
        formats.read(tmp_path / "checkpoint.pt")


def test_a_flip_in_a_deepspeed_pickle(tmp_path: Path) -> None:
    source = DEEPSPEED / "z0-fp32-w2" / "checkpoint"
    for path in source.rglob("*"):
        if path.is_file():
            there = tmp_path / path.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            data = bytearray(path.read_bytes())
            if b"buffer_names" in data:
                data[data.index(b"buffer_names")] ^= 2
            there.write_bytes(data)
    with pytest.raises(BadFile, match="its bytes have changed since"):
        formats.read(tmp_path)


def test_every_flip_in_the_records_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    begin = ARCHIVE.index(b"\x80\x02")
    for at in range(begin, begin + 20):
        damaged = bytearray(ARCHIVE)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with opened(path) as window, pytest.raises(BadFile, match="CRC-32"):
            Archive.open(window).tree()


def test_a_flip_in_the_data_is_found_when_it_is_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(ARCHIVE.replace(b"payload", b"paylaod"))
    with opened(path) as window:
        records = read_directory(window)
        check_entry(window, records["data.pkl"])
        with pytest.raises(BadFile, match="data/0' has CRC-32"):
            check_entry(window, records["data/0"])


@pytest.mark.torch
def test_an_archive_without_checksums_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert len(formats.read(tmp_path / "a.pt").tensors) == 1
    with opened(tmp_path / "a.pt") as window:
        for record in read_directory(window).values():
            assert not record.has_crc
            check_entry(window, record)


def _read_all(path: Path) -> None:
    with opened(path) as window:
        for record in read_directory(window).values():
            read_entry(window, record)


def _refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(BadFile, match=said):
        _read_all(tmp_path / "a.pt")


def test_bytes_before_the_zip(tmp_path: Path) -> None:
    _refused(tmp_path, b"#!/bin/sh\n" + ARCHIVE, "zip64 locator is damaged")
    _refused(tmp_path, b"MZ" + zip_bytes({"a/x": b"12"}), "does not end at byte")


def test_records_that_overlap(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": b"1" * 40, "a/y": b"2" * 40}))
    second = data.rindex(b"PK\x01\x02")
    struct.pack_into("<L", data, second + 42, 5)
    _refused(tmp_path, bytes(data), "they overlap")


def test_two_records_at_one_place(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": b"1" * 40, "a/y": b"2" * 40}))
    struct.pack_into("<L", data, data.rindex(b"PK\x01\x02") + 42, 0)
    _refused(tmp_path, bytes(data), "they overlap")


def test_a_header_of_another_name(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": b"12345678"}))
    data[data.index(b"a/x") + 2] = ord("y")
    _refused(tmp_path, bytes(data), "record 'a/x' begins at byte")


@pytest.mark.parametrize(("offset", "layout"), [(14, "<L"), (18, "<L"), (22, "<L"), (8, "<H")])
def test_a_header_with_other_numbers(tmp_path: Path, offset: int, layout: str) -> None:
    data = bytearray(zip_bytes({"a/x": b"12345678"}))
    struct.pack_into(layout, data, offset, 7)
    _refused(tmp_path, bytes(data), "but its header has")


def test_a_large_record_is_checked_a_piece_at_a_time(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a/x": bytes(3 * 2**20 + 5)}))
    (tmp_path / "a.pt").write_bytes(data)
    with opened(tmp_path / "a.pt") as window:
        record = read_directory(window)["x"]
        check_entry(window, record)
        at = payload_of(window, record) + 3 * 2**20 + 4
    data[at] = 1
    (tmp_path / "a.pt").write_bytes(data)
    with opened(tmp_path / "a.pt") as window, pytest.raises(BadFile, match="CRC-32"):
        check_entry(window, record)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "a.pt")
    with pytest.raises(ZerotoolsError, match="is a TorchScript program"):
        formats.read(tmp_path / "a.pt")
