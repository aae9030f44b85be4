"""Split stored tensors into one tensor for each layer and each expert.

Stored tensors differ from a model's tensors in three ways. Layers and experts are stacked along the
first axes. The halves of a gated layer may be separate tensors. Optimizer state from before 0.16 is
stored flat: a tensor of true shape (32, 16) that two ranks split along the first axis is stored
with shape (2, 1, 256). Each row is the flattened (16, 16) part of one rank, and its elements are
split at any position between data-parallel ranks.

ms-swift stores lora_B of a gated layer rank by rank: the rows of the gate and of the other half on
rank 0, then the same rows on rank 1, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import cast

from zerotools.core.boxes import Box, boxes_of_range
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.megatron.torch_dist_keys import HALVES, stack_of
from zerotools.io.distcp.item_chunks import DerivedChunks, ItemChunks, StoredPiece

_HALF_OF_ADAPTER = re.compile(r".*\.linear_fc1\.lora_B\.([^.]+\.)?weight", re.S)
_MOST_TENSORS = 2**20
_MOST_PIECES = 2**23
_Index = tuple[int, ...]


def unstack_tensors(
    path: Path, tensors: Mapping[Key, Tensor], shapes: Mapping[Key, tuple[int, ...]]
) -> dict[Key, Tensor]:
    """Split `tensors`, which have the chunks of a DCP, into one tensor for each layer and each
    expert.

    `shapes` has the true shapes of the tensors that are stored flat.

    Raises:
        BadFile: the shapes contradict each other, or there are more layers than any model has.
    """
    found: dict[Key, Tensor] = {}
    pieces = 0
    for key, tensor in tensors.items():
        made, count = _each(path, key, tensor, shapes.get(key, tensor.shape))
        pieces += count
        if len(found) + len(made) > _MOST_TENSORS or pieces > _MOST_PIECES:
            raise BadFile(
                f"{path}: {key} has shape {tensor.shape}, more layers than any model has; take "
                "another checkpoint"
            )
        found |= made
    return found


def _each(
    path: Path, key: Key, tensor: Tensor, shape: tuple[int, ...]
) -> tuple[dict[Key, Tensor], int]:
    """Return the single tensors in one stored tensor, and the number of stored pieces in them
    all.
    """
    stack = stack_of(key.name) if key.role != "state" else None
    axes = stack.axes if stack is not None and len(shape) > stack.axes else 0
    is_flat = shape != tensor.shape
    if stack is None or (not axes and not is_flat):
        name = key.name if stack is None or stack.axes else stack.parts[0]
        return {Key(name, key.role): tensor}, len(tensor.chunks)
    if prod(shape[:axes]) > _MOST_TENSORS:
        return {}, _MOST_PIECES + 1
    local = _local_shape(path, key, tensor.shape, shape) if is_flat else None
    source = cast(ItemChunks, tensor.chunks)
    numbers: dict[_Index, list[int]] = {}
    count = 0
    for number, box in enumerate(source.boxes):
        for index in _touched(box, local, axes):
            numbers.setdefault(index, []).append(number)
            count += 1
            if count > _MOST_PIECES:
                return {}, count
    names = stack.names(shape) if axes else [((), stack.name(()) if not stack.axes else key.name)]
    return {
        Key(name, key.role): Tensor(
            tensor.dtype,
            shape[axes:],
            DerivedChunks(
                tensor.dtype, partial(_pieces, source, numbers.get(index, ()), index, local)
            ),
        )
        for index, name in names
    }, count


def _local_shape(
    path: Path, key: Key, stored: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of one rank's part of a tensor that is stored flat, one part per row."""
    counts, length = stored[:-1], stored[-1] if stored else 0
    fits = len(counts) == len(shape) and all(
        n and s % n == 0 for s, n in zip(shape, counts, strict=False)
    )
    local = tuple(s // n for s, n in zip(shape, counts, strict=False)) if fits else ()
    if not fits or prod(local) != length:
        raise BadFile(
            f"{path}: {key} is stored in the shape {stored}, which does not fit flat parts of a "
            f"tensor of shape {shape}: the file is damaged; copy or download it again"
        )
    return local


def _touched(box: Box, local: tuple[int, ...] | None, axes: int) -> Iterator[_Index]:
    """Yield each index along the leading axes (layer, expert) at which a stored chunk has
    elements.
    """
    if local is None:
        yield from product(*(range(a, b) for a, b in _spans(box, axes)))
    else:
        yield from dict.fromkeys(index for index, _, _ in _flat_boxes(box, local, axes))


def _spans(box: Box, axes: int) -> Iterator[tuple[int, int]]:
    return zip(box.start[:axes], box.stop[:axes], strict=True)


def _flat_boxes(
    box: Box, local: tuple[int, ...], axes: int
) -> Iterator[tuple[_Index, _Index, Box]]:
    """Cut a chunk of a tensor that is stored flat into boxes. Yield (index along the leading axes,
    start in the stored chunk, box in the tensor at this index)."""
    rows = product(*(range(a, b) for a, b in _spans(box, len(local))))
    begin, end = box.start[-1], box.stop[-1]
    for row in rows:
        before = tuple(n - a for n, a in zip(row, box.start, strict=False))
        shift = tuple(n * size for n, size in zip(row, local, strict=True))
        at = 0
        for part in boxes_of_range(local, begin, end):
            inner = Box(part.start[axes:], part.shape[axes:])
            for index in product(*(range(a, b) for a, b in _spans(part, axes))):
                where = tuple(a + b for a, b in zip(inner.start, shift[axes:], strict=True))
                found = tuple(a + b for a, b in zip(index, shift, strict=False))
                yield found, (*before, at), Box(where, inner.shape)
                at += inner.numel


def _pieces(
    source: ItemChunks, numbers: Sequence[int], index: _Index, local: tuple[int, ...] | None
) -> list[StoredPiece]:
    """Return the pieces of the tensor at `index` along the leading axes, from the stored chunks
    with the numbers `numbers`.
    """
    axes, found = len(index), []
    for number in numbers:
        box = source.box(number)
        if local is None:
            start = tuple(n - a for n, a in zip(index, box.start, strict=False))
            inner = Box(box.start[axes:], box.shape[axes:])
            found.append(StoredPiece(source, number, (*start, *(0 for _ in inner.shape)), inner))
        else:
            found += [
                StoredPiece(source, number, start, where, is_flat=True)
                for at, start, where in _flat_boxes(box, local, axes)
                if at == index
            ]
    return found


def join_halves(path: Path, tensors: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Join the halves of gated layers: first the rows of the gate, then the rows of the other half.

    Raises:
        BadFile: one half is missing, or the two halves have different shapes.
    """
    found: dict[Key, Tensor] = {}
    for key, tensor in tensors.items():
        end = key.name[-2:]
        if end not in HALVES or key.role == "state" or "linear_fc1." not in key.name:
            found[key] = tensor
            continue
        names = [Key(key.name[:-2] + each, key.role) for each in HALVES]
        halves = [tensors.get(name) for name in names]
        gate, other = halves
        if gate is None or other is None:
            missing = names[halves.index(None)]
            raise BadFile(
                f"{path} has {key}, but not {missing}, the other half of the layer; take another "
                "checkpoint"
            )
        if (gate.shape, gate.dtype) != (other.shape, other.dtype) or not gate.shape:
            raise BadFile(
                f"{path}: {names[0]} is {gate.dtype} of shape {gate.shape} but {names[1]} is "
                f"{other.dtype} of shape {other.shape}, so they are not halves of one layer; take "
                "another checkpoint"
            )
        whole = Key(key.name[:-2], key.role)
        if whole not in found:
            shape = (2 * gate.shape[0], *gate.shape[1:])
            found[whole] = Tensor(
                gate.dtype, shape, DerivedChunks(gate.dtype, partial(_both, gate, other))
            )
    return found


def _both(gate: Tensor, other: Tensor) -> list[StoredPiece]:
    found = []
    for tensor, shift in ((gate, 0), (other, gate.shape[0])):
        source = cast(ItemChunks, tensor.chunks)
        for number, box in enumerate(source.boxes):
            moved = Box((box.start[0] + shift, *box.start[1:]), box.shape)
            found.append(StoredPiece(source, number, (0,) * len(box.shape), moved))
    return found


def reorder_gated_lora(
    tensors: Mapping[Key, Tensor], ranks: int | None
) -> tuple[dict[Key, Tensor], list[Key]]:
    """In gated layers, put the rows of lora_B in the order of the weight's rows: first the rows of
    the gate, then the rows of the other half.

    `ranks` is the number of tensor-parallel ranks that saved the tensor; if it is None, the number
    of chunks along the rows is used. Return all tensors, and the keys of the reordered tensors.
    """
    found: dict[Key, Tensor] = {}
    moved: list[Key] = []
    for key, tensor in tensors.items():
        found[key] = tensor
        if _HALF_OF_ADAPTER.fullmatch(key.name) is None or len(tensor.shape) != 2:
            continue
        source = cast(ItemChunks, tensor.chunks)
        cuts = len({box.start[0] for box in source.boxes})
        if cuts < 2 or ranks not in (None, cuts) or tensor.shape[0] % (2 * cuts):
            continue
        moved.append(key)
        found[key] = Tensor(
            tensor.dtype,
            tensor.shape,
            DerivedChunks(tensor.dtype, partial(_in_order, source, tensor.shape[0] // (2 * cuts))),
        )
    return found, moved


def _in_order(source: ItemChunks, rows: int) -> list[StoredPiece]:
    """Return the blocks of `rows` rows in a new order, as pieces: the blocks with even numbers,
    then those with odd numbers.
    """
    found = []
    half = max((box.stop[0] for box in source.boxes), default=0) // 2
    for number, box in enumerate(source.boxes):
        begin, end = box.start[0], box.stop[0]
        for block in range(begin // rows, -(-end // rows)):
            low, high = max(begin, block * rows), min(end, (block + 1) * rows)
            place = (block % 2) * half + (block // 2) * rows + low - block * rows
            start = (low - begin, *(0 for _ in box.start[1:]))
            inner = Box((place, *box.start[1:]), (high - low, *box.shape[1:]))
            found.append(StoredPiece(source, number, start, inner))
    return found
