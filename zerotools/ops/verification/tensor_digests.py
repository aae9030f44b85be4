"""The digest of a tensor: a hash over blocks of its elements that does not depend on its files.

The elements are taken in row-major order as little-endian bytes, and divided into blocks of
BLOCK_ELEMENTS. The last block may be shorter, and a tensor without elements has no block. The
digest of a block is XXH3 with 128 bits and seed 0, in its canonical form of 16 bytes, high bytes
first. The digest of the tensor is the XXH3 of its blocks' digests, concatenated, in hexadecimal.
The digest of a file is the digest of its bytes as a tensor of uint8.

A tensor of floating-point numbers has two more digests: that of its values cast to bfloat16, and
that of its values cast to float16. Casts round to nearest even, and every NaN becomes NAN_BITS. So
an export in 16 bits can be compared with a checkpoint in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.io.numeric.compare_values import count_values
from zerotools.io.numeric.dtype_casts import Array, Cast, numpy_cast, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.read_in_blocks import BLOCK_ELEMENTS, ElementBlock, share_blocks
from zerotools.ops.execution.tile_workers import MemoryBudget

ALGORITHM = "xxh3-128/2^20"
NAN_BITS = {BFLOAT16: 0x7FC0, FLOAT16: 0x7E00}


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """The digests of one tensor, in hexadecimal.

    `digest` is that of its bytes. `casts` has those after a cast to each 16-bit dtype, keyed by the
    dtype's name.
    """

    dtype: DType
    shape: tuple[int, ...]
    digest: str
    casts: Mapping[str, str] = field(default_factory=dict)


def block_hasher() -> Any:
    """Return a hasher for one block: call `update` with the block's bytes in order, then `digest`,
    which returns 16 bytes."""
    return xxhash.xxh3_128()


def of_blocks(blocks: Iterable[bytes]) -> str:
    """Return the digest of a tensor, in hexadecimal, from the digests of its blocks."""
    whole = xxhash.xxh3_128()
    for block in blocks:
        whole.update(block)
    return str(whole.hexdigest())


def digests_of(
    checkpoint: Checkpoint,
    keys: Iterable[Key],
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    cast: Cast = numpy_cast,
    casts: bool = True,
) -> dict[Key, TensorDigest]:
    """Return the digest of each tensor in `keys`.

    Args:
        on_bytes: called with the number of bytes that were digested since its last call.
        cast: the function that casts to 16 bits. Except for NaN, it must give the same bits as
            `numpy_cast`.
        casts: also compute the digests of each floating-point tensor cast to 16 bits.

    Raises:
        BadFile: a tensor is incomplete, or a file is missing or truncated.
    """
    wanted = {key: checkpoint.tensors[key] for key in keys}
    found = {key: _DigestsInProgress(tensor, casts) for key, tensor in wanted.items()}
    done: dict[Key, TensorDigest] = {
        key: growing.finished() for key, growing in found.items() if not growing.left
    }

    def work(block: ElementBlock, parts: Iterator[Array], scratch: Scratch) -> tuple[bytes, ...]:
        return _digests(block.dtype, parts, scratch.read, cast, casts=casts)

    for block, digests in share_blocks(checkpoint, wanted, budget, work):
        growing = found[block.key]
        growing.add(block.number, digests)
        on_bytes(block.nbytes)
        if not growing.left:
            done[block.key] = growing.finished()
    return {key: done[key] for key in wanted}


class _DigestsInProgress:
    """The digests of a tensor while its blocks are read."""

    def __init__(self, tensor: Tensor, casts: bool) -> None:
        self._tensor = tensor
        self._types = _types(tensor.dtype) if casts else ()
        self.left = -(-tensor.numel // BLOCK_ELEMENTS)
        self._blocks: list[tuple[bytes, ...]] = [()] * self.left

    def add(self, number: int, digests: tuple[bytes, ...]) -> None:
        self._blocks[number] = digests
        self.left -= 1

    def finished(self) -> TensorDigest:
        columns = range(1 + len(self._types))
        own, *casts = [of_blocks(block[column] for block in self._blocks) for column in columns]
        self._blocks = []
        names = (dtype.name for dtype in self._types)
        return TensorDigest(
            self._tensor.dtype, self._tensor.shape, own, dict(zip(names, casts, strict=True))
        )


def _types(dtype: DType) -> tuple[DType, ...]:
    return tuple(NAN_BITS) if dtype.is_float else ()


def _digests(
    dtype: DType, parts: Iterable[Array], buffer: Array, cast: Cast, *, casts: bool
) -> tuple[bytes, ...]:
    hashers = _Hashers(dtype, buffer, cast, casts=casts)
    for raw in parts:
        hashers.update(raw)
    return hashers.digests()


class _Hashers:
    """Computes the digest of a block's bytes, and the digest of each cast. Casts are made in the
    memory of `buffer`."""

    def __init__(self, dtype: DType, buffer: Array, cast: Cast, *, casts: bool) -> None:
        self._dtype = dtype
        self._buffer = buffer
        self._cast = cast
        self._own = block_hasher()
        # The cast to its own type has the same bytes until there is a NaN.
        types = _types(dtype) if casts else ()
        self._casts = {target: None if target == dtype else block_hasher() for target in types}

    def update(self, raw: Array) -> None:
        values = raw.view(numpy_dtype(self._dtype))
        for target, hasher in self._casts.items():
            if hasher is None and count_values(values).nans:
                hasher = self._casts[target] = self._own.copy()
            if hasher is not None:
                buffer = self._buffer[: values.size * target.itemsize]
                hasher.update(canonical_cast(values, target, buffer, self._cast).data)
        self._own.update(raw.data)

    def digests(self) -> tuple[bytes, ...]:
        """Return the digest of the block's bytes, and the digest of each cast."""
        return tuple((each or self._own).digest() for each in (self._own, *self._casts.values()))


def canonical_cast(values: Array, target: DType, buffer: Array, cast: Cast = numpy_cast) -> Array:
    """Cast `values` to bfloat16 or float16 in the memory of `buffer`, with `NAN_BITS` for every
    NaN. Return the bytes of the result."""
    out = buffer.view(numpy_dtype(target))
    cast(out, values)
    if count_values(out).nans:
        buffer.view(np.uint16)[np.isnan(out)] = NAN_BITS[target]
    return buffer
