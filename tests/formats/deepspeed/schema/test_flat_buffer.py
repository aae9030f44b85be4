"""Any cut of any parameters over any number of ranks is read back as it was."""

from __future__ import annotations

from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import load, shapes
from zerotools.core import dtypes
from zerotools.core.boxes import prove_cover
from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.ranges import Range, Ranges, covering_ranges
from zerotools.formats.deepspeed.schema.flat_buffer import (
    FlatPartition,
    zero3_ranges,
    zero12_ranges,
)
from zerotools.io.numeric.numpy_dtypes import Array

KEY = Key("w", "param")


def stored(root: Path, rows: list[Array]) -> list[FlatPartition | None]:
    """One file per rank, its vector behind a few bytes of something else."""
    vectors: list[FlatPartition | None] = []
    for rank, values in enumerate(rows):
        (root / f"rank{rank}").write_bytes(b"head" * rank + values.tobytes())
        vectors.append(FlatPartition(f"rank{rank}", 4 * rank, values.size, dtypes.FLOAT32))
    return vectors


def read_back(root: Path, shape: tuple[int, ...], ranges: list[Range]) -> Array:
    chunks = Ranges(dtypes.FLOAT32, shape, lambda: ranges)
    tensors = {KEY: Tensor(dtypes.FLOAT32, shape, chunks)}
    assert covering_ranges(tensors[KEY], {}) == ranges
    assert prove_cover(shape, [chunk.box for chunk in chunks]) is None
    return load(Checkpoint(root, tensors, Origin("test", root)), KEY)


def numbered(shape: tuple[int, ...], first: int) -> Array:
    return np.arange(first, first + prod(shape), dtype=np.float32).reshape(shape)


@given(st.lists(shapes, min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 2))
def test_stages_1_and_2(drawn: list[tuple[int, ...]], ranks: int, cut_off: int) -> None:
    values = [numbered(shape, 1000 * i) for i, shape in enumerate(drawn)]
    flat = np.concatenate([each.ravel() for each in values])
    partition = -(-flat.size // (2 * ranks)) * 2
    padded = np.zeros(partition * ranks, np.float32)
    padded[: flat.size] = flat
    rows = list(padded.reshape(ranks, partition))
    # Trailing padding is cut from the last rank, by more or less, as versions differ.
    spare = min(cut_off, partition * ranks - flat.size, partition)
    rows[-1] = rows[-1][: partition - spare]
    with TemporaryDirectory() as directory:
        vectors = stored(Path(directory), rows)
        offset = 0
        for shape, expected in zip(drawn, values, strict=True):
            ranges = list(zero12_ranges(offset, prod(shape), partition, vectors))
            assert read_back(Path(directory), shape, ranges).tobytes() == expected.tobytes()
            offset += prod(shape)


@given(st.lists(shapes, min_size=1, max_size=4), st.integers(1, 5))
def test_stage_3(drawn: list[tuple[int, ...]], ranks: int) -> None:
    values = [numbered(shape, 1000 * i) for i, shape in enumerate(drawn)]
    widths = [-(-prod(shape) // ranks) for shape in drawn]
    rows: list[list[Array]] = [[] for _ in range(ranks)]
    for each, width in zip(values, widths, strict=True):
        padded = np.full(width * ranks, np.nan, np.float32)
        padded[: each.size] = each.ravel()
        for rank, part in enumerate(padded.reshape(ranks, width)):
            rows[rank].append(part)
    with TemporaryDirectory() as directory:
        vectors = stored(Path(directory), [np.concatenate(row) for row in rows])
        offset = 0
        for shape, expected, width in zip(drawn, values, widths, strict=True):
            ranges = list(zero3_ranges(offset, prod(shape), width, vectors))
            assert read_back(Path(directory), shape, ranges).tobytes() == expected.tobytes()
            offset += width


def test_a_missing_rank_and_a_short_vector_are_holes() -> None:
    whole = FlatPartition("a", 0, 4, dtypes.FLOAT32)
    assert list(zero12_ranges(0, 8, 4, [None, whole])) == [Range(4, 8, "a", 0)]
    assert list(zero3_ranges(0, 8, 4, [None, whole])) == [Range(4, 8, "a", 0)]
    assert list(zero12_ranges(1, 7, 8, [whole])) == [Range(0, 3, "a", 4)]
    assert list(zero3_ranges(1, 8, 8, [whole])) == [Range(0, 3, "a", 4)]
