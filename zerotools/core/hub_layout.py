"""The position of each tensor of a model in the tensors of its Hub directory.

When transformers loads a directory, it may rename tensors, stack the tensors of a layer's experts,
join or cut tensors along a dimension, or transpose them. All these operations move elements and do
not change values. So a tensor of the model is a set of blocks in tensors of the Hub. In the same
way, a tensor of a checkpoint is a set of chunks in files. The same blocks also describe how the
Hub's tensors are made from the model's tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from zerotools.core.boxes import Box, row_major_strides


@dataclass(frozen=True, slots=True)
class HubBlock:
    """A block of a model's tensor, and its position in a tensor of the Hub. The block `box` is
    filled from the Hub's tensor `name`, which has shape `shape`.

    The block's elements begin at element `offset` of the Hub's tensor. They are `strides` elements
    apart in each dimension; None means row-major and contiguous.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    offset: int = 0
    strides: tuple[int, ...] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides of the block in the Hub's tensor, in elements; if `strides` is None, the
        row-major strides.
        """
        return row_major_strides(self.box.shape) if self.strides is None else self.strides

    def part(self, box: Box) -> HubBlock | None:
        """Return the part of the block that lies inside `box`, or None if they share no element."""
        common = self.box.intersect(box)
        if common is None:
            return None
        inside = common.relative_to(self.box).start
        offset = self.offset + sum(i * s for i, s in zip(inside, self.steps, strict=True))
        return replace(self, box=common, offset=offset, strides=self.steps)

    @property
    def last(self) -> int:
        """The flat index of the block's last element in the Hub's tensor."""
        reach = zip(self.box.shape, self.steps, strict=True)
        return self.offset + sum((n - 1) * s for n, s in reach)


HubLayout = Mapping[str, tuple[HubBlock, ...]]
"""Name of a tensor of the model -> the blocks that it consists of."""


def whole_tensor_block(name: str, shape: tuple[int, ...]) -> HubBlock:
    """Return the block of a model's tensor that equals the Hub's tensor `name`."""
    return HubBlock(name, shape, Box.whole(shape))


def simplified_block(block: HubBlock) -> HubBlock:
    """Return the block, with `strides` set to None if they are row-major and contiguous."""
    dense = row_major_strides(block.box.shape)
    sizes = zip(block.box.shape, block.steps, dense, strict=True)
    return replace(
        block, strides=None if all(n == 1 or a == b for n, a, b in sizes) else block.steps
    )


def is_unchanged(name: str, shape: tuple[int, ...], blocks: tuple[HubBlock, ...]) -> bool:
    """Return whether the model's tensor `name` has the same name, shape and element order on the
    Hub."""
    return blocks == (whole_tensor_block(name, shape),)


@dataclass(frozen=True, slots=True)
class HubPiece:
    """A part of a Hub tensor: its block `box` is filled from the block `source` of the model's
    tensor `name`.

    `dims` has, for each dimension of `box`, the corresponding dimension of the model's tensor; -1
    if `box` has only one index in this dimension.
    """

    name: str
    box: Box
    source: Box
    dims: tuple[int, ...]


def pieces_of(name: str, block: HubBlock) -> Iterator[HubPiece]:
    """Yield the pieces of Hub tensors that are filled from `block` of the model's tensor `name`.

    Each piece is one box of a Hub tensor. If the elements of the block are not one box of a Hub
    tensor, the block is cut into parts that are.
    """
    if block.box.is_empty:
        return
    rows = row_major_strides(block.shape)
    start = _coordinates(block.offset, rows)
    dims = [-1] * len(rows)
    for dim, (count, step) in enumerate(zip(block.box.shape, block.steps, strict=True)):
        if count == 1:
            continue
        along = _dimension(step, rows, block.shape, dims)
        if along is None or start[along] + count > block.shape[along]:
            first, most = (
                (1, 1) if along is None else (block.shape[along] - start[along], block.shape[along])
            )
            for part in _cut(block, dim, first, most):
                yield from pieces_of(name, part)
            return
        dims[along] = dim
    shape = tuple(1 if dim < 0 else block.box.shape[dim] for dim in dims)
    yield HubPiece(name, Box(start, shape), block.box, tuple(dims))


def _coordinates(offset: int, rows: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for row in rows:
        found.append(offset // row)
        offset %= row
    return tuple(found)


def _dimension(
    step: int, rows: tuple[int, ...], shape: tuple[int, ...], taken: list[int]
) -> int | None:
    """Return a dimension d of the Hub's tensor in which neighbours are `step` elements apart, and
    which has a negative `taken[d]`. Return None if no such dimension exists.
    """
    fitting = (d for d, row in enumerate(rows) if row == step and shape[d] > 1 and taken[d] < 0)
    return next(fitting, None)


def _cut(block: HubBlock, dim: int, first: int, most: int) -> Iterator[HubBlock]:
    """Yield the parts of a block, cut along dimension `dim`: the first part has `first` indices,
    and each later part at most `most`.
    """
    start, shape = block.box.start, block.box.shape
    for begin, end in pairwise([0, *range(first, shape[dim], most), shape[dim]]):
        box = Box(
            (*start[:dim], start[dim] + begin, *start[dim + 1 :]),
            (*shape[:dim], end - begin, *shape[dim + 1 :]),
        )
        part = block.part(box)
        assert part is not None
        yield part
