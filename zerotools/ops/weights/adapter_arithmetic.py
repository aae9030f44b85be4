"""Compute the values of a weight with an adapter merged into it, in fp32 as PEFT does, one block at
a time.

    W + scale * B·A               LoRA; convolutions as one matrix, experts one by one
    m / |W + scale * B·A| * ...   DoRA: m has the magnitude of each row, and |...| is its norm
    W with other rows             trainable tokens
    b + scale * c                 a bias, with `lora_bias`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from zerotools.core import dtypes
from zerotools.core.boxes import Box, contiguous_boxes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.tensor_parallel_placement import PlacedBlock, place_chunk
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.execution.load_arrays import load_tensors

BLOCK_BYTES = 16 * 1024 * 1024
"""The approximate size in bytes of the blocks that are computed at a time."""


class Layout(Enum):
    """The order of the dimensions of a weight that an adapter changes."""

    ROWS = "rows"
    """(out, in): `nn.Linear`, and convolutions with all dimensions after the first joined."""
    TRANSPOSED = "transposed"
    """(in, out): `Conv1D` of GPT-2, `nn.Embedding`."""
    EXPERTS = "experts"
    """(experts, out, in)."""
    EXPERTS_TRANSPOSED = "experts transposed"
    """(experts, in, out)."""


@dataclass(frozen=True, slots=True)
class Product:
    """A change of a weight: `scale` times the product of two matrices is added. With a `magnitude`
    (DoRA), the sum is then scaled so that its norms are `magnitude`."""

    down: Key
    up: Key
    scale: float
    layout: Layout
    magnitude: Key | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """A change of a weight: the rows of `values` replace its rows `indices`."""

    values: Key
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """A change of a tensor: `scale` times the tensor `values` of the same shape is added."""

    values: Key
    scale: float


Change = Product | Rows | Offset
Applied = Callable[[Box, Array], Array]
"""A function that takes a block and its values in fp32, and returns the changed values."""
Reader = Callable[[Box], Array]


def block_reader(checkpoint: Checkpoint, key: Key) -> Reader:
    """Return a function that reads blocks of the tensor `key` in fp32."""
    tensor = checkpoint.tensors[key]

    def read(box: Box) -> Array:
        part = replace(checkpoint, tensors={key: _part(tensor, box)})
        return load_tensors(part, {key: dtypes.FLOAT32})[key]

    return read


def blocks_of(shape: Sequence[int]) -> Iterator[Box]:
    """Divide a tensor into blocks that are contiguous and in row-major order."""
    return contiguous_boxes(Box.whole(tuple(shape)), BLOCK_BYTES // 4)


def merged_change(
    changes: Sequence[Change], halves: Checkpoint, shape: tuple[int, ...], read: Reader
) -> Applied:
    """Return a function that applies all `changes` to blocks of a weight of `shape`. `read` reads
    blocks of the weight, and `halves` has the tensors of the adapter."""
    if 0 in shape:
        return lambda _, values: values
    steps: list[Applied] = []

    def apply(box: Box, values: Array) -> Array:
        for step in steps:
            values = step(box, values)
        return values

    for change in changes:
        if isinstance(change, Product):
            steps.append(_product(change, halves, shape))
            if change.magnitude is not None:
                norms = _norms(change.layout, shape, lambda box: apply(box, read(box)))
                magnitude = _loaded(halves, change.magnitude).reshape(-1)
                steps.append(_scaled(magnitude / norms, change.layout))
        elif isinstance(change, Rows):
            steps.append(_rows(_loaded(halves, change.values), change.indices))
        else:
            steps.append(_offset(_loaded(halves, change.values), change.scale))
    return apply


def _loaded(halves: Checkpoint, key: Key) -> Array:
    return load_tensors(halves, {key: dtypes.FLOAT32})[key]


def _product(change: Product, halves: Checkpoint, shape: tuple[int, ...]) -> Applied:
    left, right = _factors(change, halves, shape)
    scale, inner = np.float32(change.scale), shape[1:]

    def apply_matrix(box: Box, values: Array) -> Array:
        rows, *others = _slices(box)
        columns = right.reshape(-1, *inner)[(slice(None), *others)].reshape(len(right), -1)
        return values + (left[rows] @ columns).reshape(box.shape) * scale

    def apply_experts(box: Box, values: Array) -> Array:
        experts, rows, columns = _slices(box)
        added = [
            left[each][rows] @ right[each][:, columns]
            for each in range(experts.start, experts.stop)
        ]
        return values + np.stack(added) * scale

    return apply_experts if left.ndim == 3 else apply_matrix


def _factors(change: Product, halves: Checkpoint, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the two matrices of the adapter, ordered so that their product has the layout of the
    weight."""
    down, up = _loaded(halves, change.down), _loaded(halves, change.up)
    if change.layout in (Layout.ROWS, Layout.TRANSPOSED):
        up, down = up.reshape(len(up), -1), down.reshape(len(down), -1)
        return (up, down) if change.layout is Layout.ROWS else (down.T, up.T)
    experts = shape[0]  # A has them one behind another, and B side by side
    down = down.reshape(experts, -1, down.shape[1])
    up = up.reshape(len(up), -1, experts).transpose(2, 0, 1)
    if change.layout is Layout.EXPERTS:
        return up, down
    return down.transpose(0, 2, 1), up.transpose(0, 2, 1)


def _slices(box: Box) -> list[slice]:
    return [slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True)]


def _norms(layout: Layout, shape: tuple[int, ...], read: Reader) -> Array:
    """Return the norm of the weights for each output of a layer."""
    axis = _axis(layout)
    total = np.zeros(shape[axis], np.float64)
    for box in blocks_of(shape):
        others = tuple(d for d in range(len(shape)) if d != axis)
        squares = np.square(read(box), dtype=np.float64)
        total[_slices(box)[axis]] += squares.sum(axis=others)
    return np.sqrt(total).astype(np.float32)


def _axis(layout: Layout) -> int:
    return 1 if layout is Layout.TRANSPOSED else 0


def _scaled(factor: Array, layout: Layout) -> Applied:
    def apply(box: Box, values: Array) -> Array:
        shape = [1] * values.ndim
        shape[_axis(layout)] = -1
        part: Array = factor[_slices(box)[_axis(layout)]].reshape(shape)
        return part * values

    return apply


def _rows(new: Array, indices: tuple[int, ...]) -> Applied:
    def apply(box: Box, values: Array) -> Array:
        first, others = box.start[0], tuple(_slices(box)[1:])
        result = values.copy()
        for number, index in enumerate(indices):
            if first <= index < first + box.shape[0]:
                result[index - first] = new[number][others]
        return result

    return apply


def _offset(added: Array, scale: float) -> Applied:
    def apply(box: Box, values: Array) -> Array:
        return values + np.float32(scale) * added[tuple(_slices(box))]

    return apply


def _part(tensor: Tensor, box: Box) -> Tensor:
    """Return a block of a tensor as a separate tensor."""
    placed = PlacedBlock(box, (0,) * len(box.shape))
    chunks = (place_chunk(chunk, placed, tensor.dtype) for chunk in tensor.chunks)
    return Tensor(tensor.dtype, box.shape, tuple(chunk for chunk in chunks if chunk is not None))
