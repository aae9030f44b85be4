"""Blocks: what is encoded comes back, and what is no block is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile
from zerotools.ops.delta.block_codec import (
    Compression,
    DeltaBlockKind,
    EncodedBlock,
    apply_block,
    encode_block,
)

ZSTD = Compression()


def there_and_back(before: bytes | None, after: bytes, itemsize: int) -> EncodedBlock:
    block = encode_block(before, after, itemsize, ZSTD.pack)
    old = None if before is None else memoryview(bytearray(before))
    assert apply_block(old, block, itemsize, ZSTD.unpack) == after
    return block


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 3000),
    st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_any_change_comes_back(itemsize: int, elements: int, part: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = rng.integers(0, 256, (elements, itemsize), np.uint8)
    after = np.where(rng.random((elements, 1)) < part, before ^ rng.integers(256), before)
    there_and_back(before.tobytes(), after.astype(np.uint8).tobytes(), itemsize)


def of(*values: int) -> bytes:
    return np.array(values, np.uint16).tobytes()


@pytest.mark.parametrize("place", [0, 1, 253, 254, 255, 256, 509, 510, 511, 999])
def test_one_element_far_from_the_others(place: int) -> None:
    before = np.zeros(1000, np.uint16)
    after = before.copy()
    after[place] = 65535
    block = there_and_back(before.tobytes(), after.tobytes(), 2)
    assert (block.kind, block.changed) == (DeltaBlockKind.SPARSE, 1)


def test_each_kind_has_its_case() -> None:
    old = of(*range(100))
    assert there_and_back(old, old, 2) == (DeltaBlockKind.SAME, 0, b"", b"")
    assert there_and_back(old, of(7, *range(1, 100)), 2).kind == DeltaBlockKind.SPARSE
    assert there_and_back(old, of(*range(1, 101)), 2).kind == DeltaBlockKind.DENSE
    assert there_and_back(None, old, 2).kind == DeltaBlockKind.NEW
    assert there_and_back(of(0), of(65535), 2).changed == 1


def test_small_changes_of_two_in_a_hundred_values_are_a_small_block() -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(0, 2**16, 1 << 18).astype(np.uint16)
    moved = rng.random(len(before)) < 0.02
    after = before + np.where(moved, rng.choice([1, -1], len(before)), 0).astype(np.uint16)
    block = there_and_back(before.tobytes(), after.tobytes(), 2)
    assert len(block.positions) + len(block.values) < before.nbytes / 80


OLD = of(*range(1000))
GOOD = encode_block(OLD, of(1, *range(1, 999), 3), 2, ZSTD.pack)


@pytest.mark.parametrize(
    "block",
    [
        GOOD._replace(changed=1),
        GOOD._replace(changed=3),
        GOOD._replace(values=b"no zstd"),
        GOOD._replace(values=ZSTD.pack(b"123")),
        GOOD._replace(positions=GOOD.positions[:6]),
        GOOD._replace(positions=b""),
        GOOD._replace(positions=(2**31).to_bytes(4, "little") + GOOD.positions[4:]),
        GOOD._replace(positions=(3).to_bytes(4, "little") + ZSTD.pack(bytes([0, 255, 255]))),
        GOOD._replace(
            changed=2, positions=(8).to_bytes(4, "little") + ZSTD.pack(bytes([0, *[255] * 6, 0]))
        ),
        GOOD._replace(kind=DeltaBlockKind.DENSE),
    ],
)
def test_what_does_not_fit_is_refused(block: EncodedBlock) -> None:
    with pytest.raises(BadFile):
        apply_block(memoryview(bytearray(OLD)), block, 2, ZSTD.unpack)


def test_a_change_of_nothing_is_refused() -> None:
    with pytest.raises(BadFile, match="elements that do not exist"):
        apply_block(None, GOOD, 2, ZSTD.unpack)
