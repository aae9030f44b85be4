"""Tensors lying in files in any way that a chunk can say, for property tests.

`layouts(shape)` draws a partition of a tensor; `store` writes one with numpy alone, at unaligned
offsets, in any memory order, with rubbish between the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.target import FilePlan, Target
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def partitions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Disjoint boxes that cover a tensor of `shape`, from repeated cuts, in any order."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 4))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        wide = [d for d, n in enumerate(box.shape) if n > 1]
        if not wide:
            boxes.append(box)
            continue
        axis = draw(st.sampled_from(wide))
        at = draw(st.integers(1, box.shape[axis] - 1))
        boxes += cut(box, axis, at)
    return draw(st.permutations(boxes))


def cut(box: Box, axis: int, at: int) -> list[Box]:
    """Both sides of a cut `at` elements into the box along `axis`."""

    def side(first: int, count: int) -> Box:
        start = (*box.start[:axis], box.start[axis] + first, *box.start[axis + 1 :])
        return Box(start, (*box.shape[:axis], count, *box.shape[axis + 1 :]))

    return [side(0, at), side(at, box.shape[axis] - at)]


@dataclass(frozen=True)
class Placement:
    """Where a box goes: which file, how many bytes of rubbish before it, the memory order."""

    box: Box
    file: str
    gap: int
    order: tuple[int, ...]


@st.composite
def layouts(
    draw: st.DrawFn, shape: tuple[int, ...], *, contiguous: bool = False
) -> list[Placement]:
    """A partition with a place for each box; source layouts may repeat one as a replica."""
    boxes = draw(partitions(shape))
    if not contiguous and draw(st.booleans()):
        boxes.append(boxes[0])
    axes = tuple(range(len(shape)))
    orders = st.just(axes) if contiguous else st.permutations(axes).map(tuple)
    return [
        Placement(
            box,
            draw(st.sampled_from(["a.bin", "sub/b.bin"])),
            draw(st.integers(0, 7)),
            draw(orders),
        )
        for box in boxes
    ]


def place(placements: list[Placement], dtype: DType) -> tuple[list[Chunk], dict[str, int]]:
    """Chunks for placements, and the sizes of their files."""
    sizes: dict[str, int] = {}
    chunks = []
    for item in placements:
        offset = sizes.get(item.file, 0) + item.gap
        chunks.append(Chunk(item.box, item.file, offset, _strides(item)))
        sizes[item.file] = offset + item.box.numel * dtype.itemsize
    return chunks, sizes


def _strides(item: Placement) -> tuple[int, ...] | None:
    if item.order == tuple(range(len(item.order))):
        return None
    strides, step = [0] * len(item.order), 1
    for axis in reversed(item.order):
        strides[axis] = step
        step *= item.box.shape[axis]
    return tuple(strides)


def store(root: Path, tensors: dict[Key, tuple[Array, DType, list[Placement]]]) -> Checkpoint:
    """Write tensors below `root`, each with files of its own, and describe them."""
    described, files = {}, {}
    for number, (key, (values, dtype, placements)) in enumerate(tensors.items()):
        own = [Placement(p.box, f"{number}/{p.file}", p.gap, p.order) for p in placements]
        chunks, sizes = place(own, dtype)
        for file, size in sizes.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            content = bytearray(b"\xa5" * size)
            for item, chunk in zip(own, chunks, strict=True):
                if item.file == file:
                    block = values[slices(item.box)].transpose(item.order)
                    data = np.ascontiguousarray(block).tobytes()
                    content[chunk.offset : chunk.offset + len(data)] = data
            (root / file).write_bytes(content)
        files |= sizes
        described[key] = Tensor(dtype, values.shape, chunks)
    return Checkpoint(root, described, Origin("test", root), files=files)


def target(
    root: Path, tensors: dict[Key, tuple[tuple[int, ...], DType, list[Placement]]]
) -> Target:
    """A target with the given layouts, each tensor in files of its own."""
    described, files = {}, {}
    for number, (key, (shape, dtype, placements)) in enumerate(tensors.items()):
        own = [Placement(p.box, f"{number}/{p.file}", p.gap, p.order) for p in placements]
        chunks, sizes = place(own, dtype)
        files |= sizes
        described[key] = Tensor(dtype, shape, chunks)
    checkpoint = Checkpoint(root, described, Origin("test", root), files=files)
    return Target(checkpoint, {file: FilePlan(size) for file, size in files.items()})


def load(checkpoint: Checkpoint, key: Key) -> Array:
    """The values of one tensor, read with numpy alone."""
    tensor = checkpoint.tensors[key]
    element = numpy_dtype(tensor.dtype)
    values = np.zeros(tensor.shape, element)
    for chunk in tensor.chunks:
        data = (checkpoint.root / chunk.file).read_bytes()[chunk.offset :]
        strides = chunk.strides
        view = np.ndarray(
            chunk.box.shape,
            element,
            buffer=bytearray(data[: chunk.extent(tensor.dtype)]),
            strides=None if strides is None else tuple(s * element.itemsize for s in strides),
        )
        values[slices(chunk.box)] = view
    return values


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
