"""Make a checkpoint from strided views of another checkpoint's tensors.

A `TensorView` consists of pieces (`ViewPiece`). A piece is a strided part of one source tensor: it
begins at an index, and continues in steps. A chunk is a strided range of a file. So the part of a
piece that lies in a chunk is a `Chunk` too, with strides that are the chunk's strides times the
steps of the piece. Therefore such a checkpoint is planned, checked for completeness and copied like
any other, and views of views are possible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from zerotools.core.boxes import Box, BoxIndex, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunksOnDemand, Key, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.scaled_cast import ScaledCast
from zerotools.maps.views import TensorView, View, ViewPiece, whole_view

_KEPT_SOURCES = 8


def rearranged_checkpoint(checkpoint: Checkpoint, views: Mapping[str, TensorView]) -> Checkpoint:
    """Return `checkpoint` with only the tensors that `views` describes, keyed by new name. Each is
    made for every role that its parts have.

    Raises:
        BadRequest: some parts of a view have a role that its other parts lack.
        Unsupported: tensors of different dtypes would become one.
    """
    by_role: dict[str, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.tensors.items():
        by_role.setdefault(key.role, {})[key.name] = tensor
    tensors: dict[Key, Tensor] = {}
    chunks = _Chunks()
    for role, parts in by_role.items():
        for name, view in views.items():
            if any(part in parts for part in view.names):
                key = Key(name, role)
                tensors[key] = _viewed(checkpoint, key, view, parts, chunks)
    return replace(checkpoint, tensors=tensors)


class _Chunks:
    """A cache of the chunks of the last few tensors, because consecutive views often take parts of
    the same tensor."""

    def __init__(self) -> None:
        self._sources: OrderedDict[int, tuple[Tensor, list[Chunk], BoxIndex]] = OrderedDict()
        self._last: tuple[View, Sequence[Tensor], list[Chunk]] | None = None

    def of_view(self, view: View, parts: Sequence[Tensor]) -> list[Chunk]:
        """Return the chunks of a view of `parts`, with coordinates in the view."""
        last = self._last
        if last is None or last[0] is not view or last[1] is not parts:
            found = [
                chunk
                for piece in view.pieces
                for chunk in self._of_piece(piece, parts[piece.source])
            ]
            last = self._last = view, parts, found
        return last[2]

    def _of_piece(self, piece: ViewPiece, tensor: Tensor) -> Iterator[Chunk]:
        if piece.box.is_empty:
            return
        chunks, index = self._of_source(tensor)
        near: Iterable[Chunk] = chunks
        if len(chunks) > 1:
            near = (chunks[position] for position, _ in index.overlapping(_bounds(piece)))
        for each in near:
            chunk = _part_in(piece, each, tensor.dtype.itemsize)
            if chunk is not None:
                yield chunk

    def _of_source(self, tensor: Tensor) -> tuple[list[Chunk], BoxIndex]:
        kept = self._sources.get(id(tensor))
        if kept is None:
            chunks = [chunk for chunk in tensor.chunks if not chunk.box.is_empty]
            index = BoxIndex([chunk.box for chunk in chunks])
            kept = self._sources[id(tensor)] = tensor, chunks, index
            if len(self._sources) > _KEPT_SOURCES:
                self._sources.popitem(last=False)
        return kept[1], kept[2]


def _viewed(
    checkpoint: Checkpoint,
    key: Key,
    view: TensorView,
    parts: Mapping[str, Tensor],
    chunks: _Chunks,
) -> Tensor:
    path = checkpoint.origin.path
    lacking = next((name for name in view.names if name not in parts), None)
    first = next(name for name in view.names if name in parts)
    if lacking is not None:
        raise BadRequest(
            f"{path}: {Key(first, key.role)} and {lacking} are parts of {key.name}, but {lacking} "
            f"has no {key.role}; map only the weights, or a checkpoint that has it"
        )
    own = tuple(parts[name] for name in view.names)
    computed = next((name for name in view.names if isinstance(parts[name], ScaledCast)), None)
    if computed is not None:
        if len(own) == 1 and view.view == whole_view(0, own[0].shape):
            return own[0]  # another name
        raise Unsupported(
            f"{path}: {computed} is a quantised part of {key.name}, and a map moves bits without "
            "computing; write plain weights first (consolidate --dtype bf16), and map the result"
        )
    dtype = own[0].dtype
    for name, part in zip(view.names, own, strict=True):
        if part.dtype != dtype:
            raise Unsupported(
                f"{path}: {Key(first, key.role)} is {dtype} but {Key(name, key.role)} is "
                f"{part.dtype}, and both are parts of {key.name}, which has only one dtype; write "
                "all weights in one dtype first (consolidate --dtype bf16), and map the result"
            )
    geometry = view.view
    on_demand = ChunksOnDemand(lambda: chunks.of_view(geometry, own))
    return Tensor(dtype, geometry.shape, on_demand)


def _bounds(piece: ViewPiece) -> Box:
    """Return the smallest box of the source tensor that contains the piece."""
    reach = [1] * len(piece.start)
    for along, step, count in zip(piece.dims, piece.steps, piece.box.shape, strict=True):
        if along >= 0:
            reach[along] += (count - 1) * step
    return Box(piece.start, tuple(reach))


def _part_in(piece: ViewPiece, chunk: Chunk, itemsize: int) -> Chunk | None:
    """Return the part of the piece that lies in `chunk`, with coordinates in the view, or None."""
    strides = chunk.strides or row_major_strides(chunk.box.shape)
    first, start, shape, steps = list(piece.start), [], [], []
    for dim, (along, step) in enumerate(zip(piece.dims, piece.steps, strict=True)):
        low, high = 0, piece.box.shape[dim]
        if along >= 0:
            begin, size = chunk.box.start[along], chunk.box.shape[along]
            low = max(0, -((piece.start[along] - begin) // step))
            high = min(high, -((piece.start[along] - begin - size) // step))
            first[along] += low * step
        if low >= high:
            return None
        start.append(piece.box.start[dim] + low)
        shape.append(high - low)
        steps.append(step * strides[along] if along >= 0 else 0)
    inside = zip(first, chunk.box.start, strides, strict=True)
    offset = chunk.offset + itemsize * sum((a - b) * s for a, b, s in inside)
    found = Chunk(Box(tuple(start), tuple(shape)), chunk.file, offset, tuple(steps))
    return replace(found, strides=None) if found.is_contiguous else found
