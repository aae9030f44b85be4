from __future__ import annotations

import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.ops.exports import noise
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32, FLOAT64
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.file_scan import (
    BLOCK_BYTES,
    ClaimedBytes,
    Record,
    ScannedFile,
    claims_of,
    scan_files,
)
from zerotools.ops.verification.tensor_digests import block_hasher, of_blocks

from .damage import SMALL, flip

EDGES = [0, 5, 5, BLOCK_BYTES - 1, BLOCK_BYTES + 2**16, 3 * BLOCK_BYTES]
SIZE = 5 * BLOCK_BYTES + 7


@pytest.fixture
def file(tmp_path: Path) -> ScannedFile:
    """Records across and between blocks, an empty one among them, and bytes behind the last."""
    data = np.random.default_rng(1).bytes(SIZE)
    (tmp_path / "a").write_bytes(data)
    records = [
        Record(begin, end - begin, zlib.crc32(data[begin:end]), str(begin))
        for begin, end in pairwise(EDGES)
    ]
    return ScannedFile("a", SIZE, records)


@pytest.mark.parametrize("at", [0, 4, 5, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 9])
def test_a_flipped_bit_is_in_its_record_alone(tmp_path: Path, file: ScannedFile, at: int) -> None:
    seen: list[int] = []
    (found,), _ = scan_files(tmp_path, [file], ClaimedBytes(), SMALL, seen.append)
    assert (found.damaged, found.error, sum(seen)) == ([], None, SIZE)
    flip(tmp_path / "a", at)
    (found,), _ = scan_files(tmp_path, [file], ClaimedBytes(), SMALL)
    ((record, crc),) = found.damaged
    assert record.begin <= at < record.begin + record.length
    assert crc != record.crc


@pytest.mark.parametrize("budget", [SMALL, MemoryBudget(2**27, 2)])
def test_the_digest_of_a_file_is_that_of_its_blocks(
    tmp_path: Path, file: ScannedFile, budget: MemoryBudget
) -> None:
    data = (tmp_path / "a").read_bytes()
    hashers = [block_hasher() for _ in range(0, SIZE, BLOCK_BYTES)]
    for number, hasher in enumerate(hashers):
        hasher.update(data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
    (found,), _ = scan_files(tmp_path, [file], ClaimedBytes(), budget, digests=True)
    assert found.digest == of_blocks(each.digest() for each in hashers)
    assert found.damaged == []


def test_bytes_in_no_record_do_not_matter(tmp_path: Path, file: ScannedFile) -> None:
    flip(tmp_path / "a", SIZE - 1)
    (found,), _ = scan_files(tmp_path, [file], ClaimedBytes(), SMALL)
    assert found.damaged == []


def test_a_file_that_cannot_be_read_does_not_keep_others_from_it(
    tmp_path: Path, file: ScannedFile
) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    short = ScannedFile("short", 100)
    gone = ScannedFile("gone", 5)
    found, _ = scan_files(tmp_path, [short, gone, file], ClaimedBytes(), SMALL)
    assert "truncated" in (found[0].error or "")
    assert "missing" in (found[1].error or "")
    assert found[2].error is None


@pytest.mark.parametrize("offset", [0, 1, 2**18 - 3, BLOCK_BYTES - 5])
def test_every_number_is_counted_once_wherever_it_lies(tmp_path: Path, offset: int) -> None:
    """Also those that begin in one block and end in the next."""
    values = noise(600_000).astype(np.float64)
    values[::1000] = np.nan
    values[1::5000] = np.inf
    (tmp_path / "a").write_bytes(b"\xff" * offset + values.tobytes())
    chunk = Chunk(Box((0,), values.shape), "a", offset)
    key = Key("w", "param")
    size = offset + values.nbytes
    checkpoint = Checkpoint(
        tmp_path,
        {key: Tensor(FLOAT64, values.shape, (chunk,))},
        Origin("dcp", tmp_path),
        files={"a": size},
    )
    _, counts = scan_files(
        tmp_path, [ScannedFile("a", size, claimed_as="a")], claims_of(checkpoint), SMALL
    )
    assert counts == {key: ValueCounts(600, 120)}


def test_tensors_that_share_bytes_are_both_counted(tmp_path: Path) -> None:
    values = np.array([1, np.nan, 2, np.inf, 3, 4], np.float32)
    (tmp_path / "a").write_bytes(values.tobytes())
    whole = Tensor(FLOAT32, (6,), (Chunk(Box((0,), (6,)), "a", 0),))
    part = Tensor(FLOAT32, (2,), (Chunk(Box((0,), (2,)), "a", 8),))
    tensors = {Key("whole", "param"): whole, Key("part", "param"): part}
    checkpoint = Checkpoint(tmp_path, tensors, Origin("dcp", tmp_path), files={"a": 24})
    _, counts = scan_files(
        tmp_path, [ScannedFile("a", 24, claimed_as="a")], claims_of(checkpoint), SMALL
    )
    assert counts == {
        Key("whole", "param"): ValueCounts(1, 1),
        Key("part", "param"): ValueCounts(0, 1),
    }
