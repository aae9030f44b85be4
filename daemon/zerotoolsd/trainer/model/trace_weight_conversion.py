"""Tensors without values that record which elements of the Hub's tensors they consist of.

transformers' conversions are programs that call torch to stack, join, cut, transpose and reshape
loaded tensors. These tensors record the calls: each result has the blocks of the Hub's tensors that
fill it. An operation that changes values, or is unknown here, raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import torch

from zerotools.core.boxes import Box
from zerotools.core.hub_layout import HubBlock, simplified_block, whole_tensor_block

Blocks = tuple[HubBlock, ...]


class NotAMove(NotImplementedError):
    """The operation does more than move elements, so it cannot be recorded."""


class TracedTensor(torch.Tensor):  # type: ignore[misc]  # torch has no types here
    """A tensor without values. `blocks` are the blocks of the Hub's tensors that fill it."""

    blocks: Blocks

    @staticmethod
    def __new__(cls, shape: Sequence[int], blocks: Iterable[HubBlock]) -> TracedTensor:
        made: TracedTensor = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=torch.float32, device="meta"
        )
        made.blocks = tuple(blocks)
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        rule = _RULES.get(func.overloadpacket)
        if rule is None:
            raise NotAMove(f"{func} does more than move elements")
        return rule(*args, **(kwargs or {}))


def symbolic_tensor(name: str, shape: Sequence[int]) -> TracedTensor:
    """Return the symbolic tensor that stands for the Hub's tensor `name`."""
    return TracedTensor(shape, (whole_tensor_block(name, tuple(shape)),))


def blocks_of(tensor: TracedTensor) -> Blocks:
    """Return the fewest blocks that fill `tensor`."""
    return tuple(map(simplified_block, tensor.blocks))


def _same(tensor: TracedTensor, *_: Any, **__: Any) -> TracedTensor:
    return TracedTensor(tensor.shape, tensor.blocks)


def _dim(dim: int, dims: int) -> int:
    return dim + dims if dim < 0 else dim


def _moved(block: HubBlock, dim: int, by: int) -> HubBlock:
    start = list(block.box.start)
    start[dim] += by
    return replace(block, box=Box(tuple(start), block.box.shape), strides=block.steps)


def _cat(tensors: Sequence[TracedTensor], dim: int = 0) -> TracedTensor:
    dim = _dim(dim, tensors[0].dim())
    blocks: list[HubBlock] = []
    size = 0
    for tensor in tensors:
        blocks += (_moved(block, dim, size) for block in tensor.blocks)
        size += tensor.shape[dim]
    shape = list(tensors[0].shape)
    for tensor in tensors:
        if [*tensor.shape[:dim], *tensor.shape[dim + 1 :]] != [*shape[:dim], *shape[dim + 1 :]]:
            raise ValueError(
                f"tensors of shapes {shape} and {list(tensor.shape)} cannot be concatenated"
            )
    shape[dim] = size
    return TracedTensor(shape, blocks)


def _stack(tensors: Sequence[TracedTensor], dim: int = 0) -> TracedTensor:
    return _cat([_unsqueeze(tensor, dim) for tensor in tensors], dim)


def _unsqueeze(tensor: TracedTensor, dim: int) -> TracedTensor:
    dim = _dim(dim, tensor.dim() + 1)
    shape = [*tensor.shape[:dim], 1, *tensor.shape[dim:]]
    return TracedTensor(shape, (_with_dim(block, dim) for block in tensor.blocks))


def _with_dim(block: HubBlock, dim: int) -> HubBlock:
    start, shape, steps = block.box.start, block.box.shape, block.steps
    box = Box((*start[:dim], 0, *start[dim:]), (*shape[:dim], 1, *shape[dim:]))
    return replace(block, box=box, strides=(*steps[:dim], 1, *steps[dim:]))


def _without_dim(block: HubBlock, dim: int) -> HubBlock:
    start, shape, steps = block.box.start, block.box.shape, block.steps
    box = Box((*start[:dim], *start[dim + 1 :]), (*shape[:dim], *shape[dim + 1 :]))
    return replace(block, box=box, strides=(*steps[:dim], *steps[dim + 1 :]))


def _squeeze(tensor: TracedTensor, dim: int | Sequence[int] | None = None) -> TracedTensor:
    given = range(tensor.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    for each in sorted((_dim(d, tensor.dim()) for d in given), reverse=True):
        if tensor.shape[each] == 1:
            shape = [*tensor.shape[:each], *tensor.shape[each + 1 :]]
            tensor = TracedTensor(shape, (_without_dim(block, each) for block in tensor.blocks))
    return _same(tensor)


def _slice(
    tensor: TracedTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TracedTensor:
    if step != 1:
        raise NotAMove(f"a slice with step {step} is not supported")
    dim = _dim(dim, tensor.dim())
    first, last, _ = slice(start, end).indices(tensor.shape[dim])
    begin = [0] * tensor.dim()
    shape = list(tensor.shape)
    begin[dim], shape[dim] = first, max(0, last - first)
    kept = (block.part(Box(tuple(begin), tuple(shape))) for block in tensor.blocks)
    return TracedTensor(shape, (_moved(block, dim, -first) for block in kept if block is not None))


def _split(tensor: TracedTensor, sizes: int | Sequence[int], dim: int = 0) -> list[TracedTensor]:
    whole = tensor.shape[_dim(dim, tensor.dim())]
    if isinstance(sizes, int):
        cuts = [*range(0, whole, sizes), whole]
    else:
        cuts = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    return [_slice(tensor, dim, begin, end) for begin, end in pairwise(cuts)]


def _select(tensor: TracedTensor, dim: int, index: int) -> TracedTensor:
    dim = _dim(dim, tensor.dim())
    index = _dim(index, tensor.shape[dim])
    return _squeeze(_slice(tensor, dim, index, index + 1), dim)


def _unbind(tensor: TracedTensor, dim: int = 0) -> list[TracedTensor]:
    return [_select(tensor, dim, index) for index in range(tensor.shape[dim])]


def _permute(tensor: TracedTensor, order: Sequence[int]) -> TracedTensor:
    dims = [_dim(dim, tensor.dim()) for dim in order]
    return TracedTensor(
        [tensor.shape[dim] for dim in dims], (_permuted(block, dims) for block in tensor.blocks)
    )


def _permuted(block: HubBlock, dims: Sequence[int]) -> HubBlock:
    start, shape, steps = (
        tuple(values[dim] for dim in dims)
        for values in (block.box.start, block.box.shape, block.steps)
    )
    return replace(block, box=Box(start, shape), strides=steps)


def _transpose(tensor: TracedTensor, one: int = 0, other: int = 1) -> TracedTensor:
    order = list(range(tensor.dim()))
    one, other = _dim(one, tensor.dim()), _dim(other, tensor.dim())
    order[one], order[other] = other, one
    return _permute(tensor, order)


def _view(tensor: TracedTensor, shape: Sequence[int]) -> TracedTensor:
    wanted = _complete(shape, tensor.numel())
    blocks, at = list(tensor.blocks), 0
    for joined, cut in _common(list(tensor.shape), wanted):
        blocks = [part for block in blocks for part in _regrouped(block, at, joined, cut)]
        at += len(cut)
    return TracedTensor(wanted, blocks)


def _regrouped(
    block: HubBlock, at: int, joined: Sequence[int], cut: Sequence[int]
) -> Iterable[HubBlock]:
    """Return the blocks that `block` becomes if some of its dimensions are reshaped.

    These dimensions begin at dimension `at`, and have the sizes `joined` before the reshape and
    `cut` after it.
    """
    parts = [_with_dim(block, at)] if not joined else [block]
    for count in range(len(joined) - 1, 0, -1):
        size = prod(joined[count:])
        parts = [each for part in parts for each in _merged(part, at + count - 1, size)]
    for count in range(1, len(cut)):
        size = prod(cut[count:])
        parts = [each for part in parts for each in _parted(part, at + count - 1, size)]
    return parts if cut else (_without_dim(part, at) for part in parts)


def _complete(shape: Sequence[int], numel: int) -> list[int]:
    known = prod(size for size in shape if size >= 0)
    return [numel // known if size < 0 else size for size in shape]


def _common(before: list[int], after: list[int]) -> list[tuple[list[int], list[int]]]:
    """Divide the dimensions of the shapes `before` and `after` into groups, from left to right.

    The n-th groups of both shapes have the same product. Example: [6, 4] and [2, 3, 4] give ([6],
    [2, 3]) and ([4], [4]).
    """
    groups = []
    i = j = 0
    while i < len(before) or j < len(after):
        ones, others = before[i : i + 1] or [1], after[j : j + 1] or [1]
        first, second = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while prod(ones) != prod(others):
            if prod(ones) < prod(others):
                ones, i = before[first : i + 1], i + 1
            else:
                others, j = after[second : j + 1], j + 1
        groups.append((before[first:i], after[second:j]))
    return groups


def _merged(block: HubBlock, dim: int, size: int) -> Iterator[HubBlock]:
    """Yield the blocks of `block` after its dimensions `dim` and `dim + 1` were merged into one.

    `size` is the size of dimension `dim + 1` of the tensor.
    """
    a, b = block.box.start[dim : dim + 2]
    m, n = block.box.shape[dim : dim + 2]
    s, t = block.steps[dim : dim + 2]
    if m > 1 and not (b == 0 and n == size and (n == 1 or s == t * n)):
        for index in range(m):
            start, shape = list(block.box.start), list(block.box.shape)
            start[dim], shape[dim] = a + index, 1
            part = block.part(Box(tuple(start), tuple(shape)))
            assert part is not None
            yield from _merged(part, dim, size)
        return
    start, shape, steps = list(block.box.start), list(block.box.shape), list(block.steps)
    start[dim : dim + 2] = [a * size + b]
    shape[dim : dim + 2] = [m * n]
    steps[dim : dim + 2] = [s if n == 1 else t]
    yield replace(block, box=Box(tuple(start), tuple(shape)), strides=tuple(steps))


def _parted(block: HubBlock, dim: int, size: int) -> Iterator[HubBlock]:
    """Yield the blocks of `block` after dimension `dim` was split into two dimensions.

    `size` is the size of the second of these two dimensions in the tensor.
    """
    begin, count = block.box.start[dim], block.box.shape[dim]
    end, step = begin + count, block.steps[dim]
    row = -(-begin // size)  # the first whole one
    cuts = sorted({begin, min(end, row * size), max(end // size * size, min(end, row * size)), end})
    for first, last in pairwise(cuts):
        start, shape, steps = list(block.box.start), list(block.box.shape), list(block.steps)
        whole = first % size == 0 and last % size == 0
        rows = (last - first) // size if whole else 1
        start[dim : dim + 1] = [first // size, first % size]
        shape[dim : dim + 1] = [rows, (last - first) // rows]
        steps[dim : dim + 1] = [step * size, step]
        offset = block.offset + (first - begin) * step
        box = Box(tuple(start), tuple(shape))
        yield replace(block, box=box, offset=offset, strides=tuple(steps))


_aten = torch.ops.aten
_RULES: dict[Any, Callable[..., Any]] = {
    _aten.alias: _same,
    _aten.clone: _same,
    _aten.detach: _same,
    _aten._to_copy: _same,
    _aten.lift_fresh: _same,
    _aten.cat: _cat,
    _aten.stack: _stack,
    _aten.unsqueeze: _unsqueeze,
    _aten.squeeze: _squeeze,
    _aten.slice: _slice,
    _aten.split: _split,
    _aten.split_with_sizes: _split,
    _aten.select: _select,
    _aten.unbind: _unbind,
    _aten.permute: _permute,
    _aten.transpose: _transpose,
    _aten.t: _transpose,
    _aten.view: _view,
    _aten._unsafe_view: _view,
    _aten.reshape: _view,
    _aten._reshape_alias: lambda tensor, shape, *_: _view(tensor, shape),
}
