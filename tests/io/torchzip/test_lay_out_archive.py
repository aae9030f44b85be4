from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.torchzip.archives import archive_bytes, opened
from zerotools.core import dtypes
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.lay_out_archive import ALIGNMENT, lay_out
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.zip_directory import payload_of, read_directory


@given(st.lists(st.binary(max_size=200), max_size=4), st.text(max_size=200))
def test_pythons_zipfile_finds_every_byte_and_crc_right(storages: list[bytes], text: str) -> None:
    with zipfile.ZipFile(io.BytesIO(archive_bytes(text, storages))) as archive:
        assert archive.testzip() is None
        for number, data in enumerate(storages):
            assert archive.read(f"archive/data/{number}") == data
        assert archive.read("archive/byteorder") == b"little"


@given(st.lists(st.integers(0, 10**12), max_size=4), st.integers(0, 300))
def test_payloads_are_aligned_and_everything_else_is_literal(sizes: list[int], fill: int) -> None:
    layout = lay_out(dumps("x" * fill), sizes)
    spans = [(at, len(data)) for at, data in layout.literals]
    spans += [(payload.offset, payload.length) for payload in layout.payloads]
    end = 0
    for at, length in sorted(spans):
        assert at == end
        end = at + length
    assert end == layout.length
    assert all(payload.offset % ALIGNMENT == 0 for payload in layout.payloads)


def _sparse(tmp_path: Path, gibibytes: int) -> Path:
    numel = gibibytes * 2**30 // 4
    tensor = StoredTensor(Storage("0", dtypes.FLOAT32, numel), dtypes.FLOAT32, 0, (numel,), (1,))
    layout = lay_out(dumps(tensor), [numel * 4])
    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        file.truncate(layout.length)
        for at, data in layout.literals:
            file.seek(at)
            file.write(data)
        file.seek(layout.payloads[0].offset + layout.payloads[0].length - 4)
        file.write(b"\0\0\x80\x3f")
    return path


def test_sizes_beyond_32_bits(tmp_path: Path) -> None:
    path = _sparse(tmp_path, 5)
    with opened(path) as window:
        archive = Archive.open(window)
        record = read_directory(window)["data/0"]
        assert record.length == 5 * 2**30
        assert archive.payload(archive.tree().storage) == payload_of(window, record)
    with zipfile.ZipFile(path) as other:
        assert other.getinfo("archive/data/0").file_size == 5 * 2**30
        assert other.read("archive/version") == b"3\n"


@pytest.mark.torch
def test_torch_maps_an_archive_of_more_than_4_gib(tmp_path: Path) -> None:
    import torch

    read = torch.load(_sparse(tmp_path, 5), mmap=True, weights_only=True)
    assert read.numel() == 5 * 2**28
    assert (read[0].item(), read[-1].item()) == (0.0, 1.0)
