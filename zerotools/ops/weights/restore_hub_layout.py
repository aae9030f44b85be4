"""Give the tensors of a job's model the names and shapes that the model has on the Hub.

When transformers loads a model, it may join several tensors into one. The job's record lists the
joined blocks. With this list the tensors are divided again: bytes are moved, and no value is
computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from zerotools.core.boxes import Box, BoxIndex, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunksOnDemand, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.hub_layout import HubBlock, HubLayout, HubPiece, pieces_of
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.distcp.item_chunks import archives_of
from zerotools.ops.execution.plan_copies import prove_source
from zerotools.ops.weights.add_base_model_weights import BASE


def hub_layout_of(checkpoint: Checkpoint, table: FormatTable = FORMATS) -> HubLayout:
    """Return the Hub's names and shapes of the tensors that `checkpoint` has in another form. They
    come from the record of the job that wrote it.

    The result is empty if there is no such record, or if adapters are stored next to their weights,
    for which the Hub has no form.
    """
    record = format_of(checkpoint, table).job_record(checkpoint)
    if record is None or any(BASE in key.name for key in checkpoint.tensors):
        return {}
    return record.hub


def on_hub_note(layout: HubLayout) -> list[str]:
    """Return a list with one note if tensors get the Hub's names and shapes, else an empty list."""
    if not layout:
        return []
    return [
        (
            f"{count_text(len(layout), 'tensor')} get the names and shapes of the Hub, recorded in "
            "job.json"
        )
    ]


def keys_on_hub(weights: Checkpoint, layout: HubLayout) -> dict[Key, tuple[Key, ...]]:
    """Return the keys that each of `weights` is divided or renamed into on the Hub. Weights that
    are not in `layout` are left out."""
    return {
        key: tuple({Key(block.name, key.role): None for block in layout[key.name]})
        for key in weights.tensors
        if key.name in layout
    }


def restore_hub_layout(weights: Checkpoint, layout: HubLayout) -> Checkpoint:
    """Return the tensors of `weights`, divided and joined as `layout` describes.

    Raises:
        BadFile: a block is not inside its tensor, or a tensor that is divided row by row is
            incomplete.
        Unsupported: tensors of different dtypes would become one.
    """
    if not layout:
        return weights
    found: dict[Key, _Restored] = {}
    for key, tensor in _with_odd_aliases(weights, layout).items():
        blocks = layout.get(key.name)
        if blocks is None:
            blocks = (HubBlock(key.name, tensor.shape, Box.whole(tensor.shape)),)
        if any(block.strides is not None for block in blocks):
            prove_source(key, tensor, weights)  # a row is a chunk: no more than the files have
        source = _Source(key.name, tensor)
        for block in blocks:
            _check(weights, key, tensor, block)
            new = Key(block.name, key.role)
            whole = found.setdefault(new, _Restored(key, tensor, block.shape))
            whole.add(weights, key, tensor, block, source)
    tensors = {key: hub.tensor() for key, hub in found.items()}
    aliases = {
        _new_name(alias, layout): _new_name(name, layout)
        for alias, name in weights.aliases.items()
        if _is_renamed(name, layout)
    }
    # Joined blocks do not record their archive any more.
    archives = archives_of(weights)
    return replace(weights, tensors=tensors, aliases=aliases, archives=archives)


def _is_renamed(name: str, layout: HubLayout) -> bool:
    """Return whether the job's tensor `name` is one whole tensor on the Hub, under any name."""
    blocks = layout.get(name)
    return blocks is None or (len(blocks) == 1 and blocks[0].box == Box.whole(blocks[0].shape))


def _new_name(name: str, layout: HubLayout) -> str:
    return layout[name][0].name if name in layout and _is_renamed(name, layout) else name


def _with_odd_aliases(weights: Checkpoint, layout: HubLayout) -> dict[Key, Tensor]:
    """Return the tensors, with a separate copy for each alias of a tensor that is divided on the
    Hub. There is then no single tensor to tie the alias to."""
    tensors = dict(weights.tensors)
    for alias, name in weights.aliases.items():
        tensor = weights.tensors.get(Key(name, "param"))
        if tensor is not None and not _is_renamed(name, layout):
            tensors[Key(alias, "param")] = tensor
    return tensors


def _check(weights: Checkpoint, key: Key, tensor: Tensor, block: HubBlock) -> None:
    whole = Box.whole(tensor.shape)
    if len(block.box.shape) != len(tensor.shape) or not whole.contains(block.box):
        raise BadFile(
            f"{weights.origin.path}: {key} has shape {list(tensor.shape)}, but the record of the "
            f"job has {block.name} at {block.box} of this tensor: checkpoint and record are from "
            "different models; take another checkpoint"
        )


class _Source:
    """A tensor of the job, with an index of its chunks by their boxes."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self._name = name
        self._tensor = tensor

    @cached_property
    def _chunks(self) -> list[Chunk]:
        return list(self._tensor.chunks)

    @cached_property
    def _index(self) -> BoxIndex:
        return BoxIndex([chunk.box for chunk in self._chunks])

    def chunks_of(self, block: HubBlock) -> Iterator[Chunk]:
        """Yield the chunks of `block`, with coordinates in the Hub's tensor."""
        for position, common in self._index.overlapping(block.box):
            part = block.part(common)
            assert part is not None
            for piece in pieces_of(self._name, part):
                yield _moved(self._chunks[position], piece, self._tensor.dtype.itemsize)


def _moved(chunk: Chunk, piece: HubPiece, itemsize: int) -> Chunk:
    """Return the part of `chunk` in `piece`, at its position in the Hub's tensor."""
    steps = chunk.strides or row_major_strides(chunk.box.shape)
    inside = piece.source.relative_to(chunk.box).start
    offset = chunk.offset + itemsize * sum(i * s for i, s in zip(inside, steps, strict=True))
    strides = tuple(1 if dim < 0 else steps[dim] for dim in piece.dims)
    moved = Chunk(piece.box, chunk.file, offset, strides)
    return replace(moved, strides=None) if moved.is_contiguous else moved


@dataclass
class _Restored:
    """A tensor of the Hub that is built from blocks of the job's tensors."""

    first: Key
    example: Tensor
    shape: tuple[int, ...]
    parts: list[tuple[_Source, HubBlock]] = field(default_factory=list)

    def add(
        self, weights: Checkpoint, key: Key, tensor: Tensor, block: HubBlock, source: _Source
    ) -> None:
        if block.shape != self.shape:
            raise BadFile(
                f"{weights.origin.path}: the record of the job has {block.name} with shape "
                f"{list(self.shape)} and also with shape {list(block.shape)}"
            )
        if tensor.dtype != self.example.dtype:
            raise Unsupported(
                f"{weights.origin.path}: {self.first} is {self.example.dtype}, but {key} is "
                f"{tensor.dtype}; both are parts of {block.name}, which has only one dtype"
            )
        self.parts.append((source, block))

    def tensor(self) -> Tensor:
        """Return the tensor, with chunks that are computed on access."""
        return Tensor(self.example.dtype, self.shape, ChunksOnDemand(self._chunks))

    def _chunks(self) -> list[Chunk]:
        return [chunk for source, block in self.parts for chunk in source.chunks_of(block)]
