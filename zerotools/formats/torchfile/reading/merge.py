"""The same tensor in the files of all ranks: one shape, all blocks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.torchfile.schema.pieces import PartialTensor
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

K = TypeVar("K", bound=Hashable)
FileTensors = tuple[TorchFile, Mapping[K, PartialTensor]]


def merge_rank_files(files: Sequence[FileTensors[K]]) -> dict[K, Tensor]:
    """Return each tensor with the blocks of all files. A tensor that every rank has whole has as
    many copies, and the first rank's counts.

    Raises:
        BadFile: files disagree on type, shape or kind of a tensor.
    """
    first: dict[K, tuple[TorchFile, PartialTensor]] = {}
    chunks: dict[K, list[Chunk]] = {}
    for file, found in files:
        for key, pieces in found.items():
            known_file, known = first.setdefault(key, (file, pieces))
            _check_agree(key, known_file, known, file, pieces)
            chunks.setdefault(key, []).extend(
                _chunk(file, box, stored) for box, stored in pieces.blocks
            )
    return {
        key: Tensor(pieces.dtype, pieces.shape, tuple(chunks[key]))
        for key, (_, pieces) in first.items()
    }


def _check_agree(
    key: object, known_file: TorchFile, known: PartialTensor, file: TorchFile, pieces: PartialTensor
) -> None:
    ours = (known.dtype, known.shape, known.kind)
    theirs = (pieces.dtype, pieces.shape, pieces.kind)
    if ours != theirs:
        raise BadFile(
            f"{known_file.path} has {key!s:.200} as {_words(known)}, but {file.path} has it as "
            f"{_words(pieces)}"
        )


def _words(pieces: PartialTensor) -> str:
    return f"{pieces.dtype} of shape {pieces.shape}, {pieces.kind or 'whole'}"


def _chunk(file: TorchFile, box: Box, stored: StoredTensor) -> Chunk:
    chunk = file.tensor(stored).chunks[0]
    strides = None if chunk.is_contiguous else chunk.strides
    return Chunk(box, chunk.file, chunk.offset, strides)


def aliases(files: Sequence[FileTensors[str]]) -> dict[str, str]:
    """Return names of the very same elements in every file that has some of them: alias -> first
    name."""
    tied: dict[str, set[str]] = {}
    for _, found in files:
        places: dict[tuple[object, ...], str] = {}
        for name, pieces in found.items():
            if not pieces.blocks or 0 in pieces.shape:
                continue
            place = (pieces.shape, pieces.dtype, *map(_place, pieces.blocks))
            tied.setdefault(name, set()).add(places.setdefault(place, name))
    return {
        name: canonical.copy().pop()
        for name, canonical in tied.items()
        if len(canonical) == 1 and canonical != {name}
    }


def _place(block: tuple[Box, StoredTensor]) -> tuple[object, ...]:
    box, stored = block
    return (box, stored.storage.key, stored.offset, stored.shape, stored.strides)
