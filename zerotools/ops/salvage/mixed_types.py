"""A tensor of an output with parts of different types, such as an fp32 master with boxes that are
filled from bf16 weights.

To the engine a tensor has one type. So it gets the tensor as pieces, each a separate tensor in the
same bytes of the same file: a box that is contiguous in the output, of one type. The output itself
has one tensor, and is read back as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.target import Target
from zerotools.core.tensor_parallel_rules import PlacedBlock, place_chunk
from zerotools.ops.salvage.filled_weights import FilledWeight, Part, contiguous_parts


def in_pieces(
    source: Checkpoint, target: Target, mixed: Mapping[Key, FilledWeight]
) -> tuple[Checkpoint, Target]:
    """Return source and target with the tensors of `mixed` in pieces; in `target` each is one
    chunk.

    Raises:
        BadFile: a tensor has the name of a piece.
    """
    if not mixed:
        return source, target
    ours = {key: tensor for key, tensor in source.tensors.items() if key not in mixed}
    theirs = {key: t for key, t in target.checkpoint.tensors.items() if key not in mixed}
    pieces: dict[Key, list[Key]] = {}
    for key, weight in mixed.items():
        whole = target.checkpoint.tensors[key]
        for part in weight.parts:
            for piece, from_source, in_target in _pieces(key, whole, part):
                if piece in ours or piece in theirs:
                    raise BadFile(f"{source.origin.path} has a tensor {piece}; rename it")
                ours[piece], theirs[piece] = from_source, in_target
                pieces.setdefault(key, []).append(piece)

    def compared(found: Checkpoint) -> Mapping[Key, Tensor]:
        """Return the tensors that were read back, with pieces instead of the tensors that are at
        their planned positions."""
        read = dict(found.tensors)
        for key, parts in pieces.items():
            there = read.get(Key(key.name, "param"))
            if there is not None and _is_same(there, target.checkpoint.tensors[key]):
                del read[Key(key.name, "param")]
                read |= {piece: theirs[piece] for piece in parts}
        return read

    laid_out = replace(target.checkpoint, tensors=theirs)
    return replace(source, tensors=ours), replace(target, checkpoint=laid_out, compared=compared)


def _pieces(key: Key, whole: Tensor, part: Part) -> Iterator[tuple[Key, Tensor, Tensor]]:
    """Yield (key, tensor of the source, tensor of the target) of each piece of a part."""
    (chunk,) = whole.chunks
    for box, first in contiguous_parts(whole.shape, part):
        block = PlacedBlock(box, (0,) * len(box.shape))
        found = (place_chunk(each, block, part.dtype) for each in part.tensor.chunks)
        chunks = tuple(each for each in found if each is not None)
        offset = chunk.offset + first * whole.dtype.itemsize
        target = Chunk(Box.whole(box.shape), chunk.file, offset)
        yield (
            Key(f"{key.name}{box}", key.role),
            Tensor(part.dtype, box.shape, chunks),
            Tensor(whole.dtype, box.shape, (target,)),
        )


def _is_same(found: Tensor, planned: Tensor) -> bool:
    """Return whether a tensor was found at its planned position, in its type."""
    facts = [(t.dtype, t.shape, [(c.file, c.offset) for c in t.chunks]) for t in (found, planned)]
    return facts[0] == facts[1]
