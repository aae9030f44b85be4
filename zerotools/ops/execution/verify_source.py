"""What `--verify` asks of a source before an output is made of it: that its copies of one tensor
are equal, and that its bytes are those that were saved, as far as anything in it can tell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunkBox, Key, Stamp, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.ranges import Ranges, covering_ranges
from zerotools.io.distcp.items import ItemChunks
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.gather import Scratch
from zerotools.io.torchzip.window import FileRange
from zerotools.io.torchzip.zip_directory import check_entry, payload_of, read_directory
from zerotools.ops.execution.fill import fill
from zerotools.ops.execution.plan import Copy
from zerotools.ops.execution.tiles import BoxPart, Tile
from zerotools.ops.execution.workers import MemoryBudget, TileWorkers
from zerotools.runs.manifest import MANIFEST, verify_manifest

_ZIP = b"PK\x03\x04"
_ADVICE = "take another checkpoint, or leave --verify out to export it as it is"


def verify_source(
    source: Checkpoint,
    keys: Iterable[Key],
    stamps: Mapping[Path, Stamp],
    budget: MemoryBudget,
) -> None:
    """Check the tensors `keys` of `source`, of which the files `stamps` were read.

    Raises:
        BadFile: a file has another digest than the manifest says, a record another CRC-32 than its
            archive says, or two copies of a tensor differ.
    """
    tensors = {key: source.tensors[key] for key in keys}
    _check_manifests(source, stamps)
    _check_records(source, tensors.values())
    sources = Sources(source.stamps)
    for _, difference in differing_replicas(source, tensors, budget, sources):
        raise BadFile(f"{difference}; {_ADVICE}")


def _check_manifests(source: Checkpoint, stamps: Mapping[Path, Stamp]) -> None:
    """The digests of a job's own checkpoint; DeepSpeed's files lie in a directory of it."""
    for directory in (source.root, source.root.parent):
        if not (directory / MANIFEST).is_file():
            continue
        for problem in verify_manifest(directory):
            if problem.file is not None and (directory / problem.file).absolute() in stamps:
                raise BadFile(f"{problem.message}; {_ADVICE}")


def _check_records(source: Checkpoint, tensors: Iterable[Tensor]) -> None:
    """The CRC-32 of every record of a torch archive that a tensor is read from."""
    offsets: dict[str, set[int]] = {}
    archives: dict[str, dict[int, int]] = {}
    for tensor in tensors:
        for file, offset in _offsets(tensor):
            offsets.setdefault(file, set()).add(offset)
        if isinstance(tensor.chunks, ItemChunks):
            for item in tensor.chunks.items():
                archives.setdefault(item.file, {})[item.offset] = item.length
    with OpenFiles(source.root, sources=Sources(source.stamps)) as files:
        for file, found in offsets.items():
            ordered = sorted(found)
            with files.descriptor(file) as descriptor:
                whole = FileRange.whole(descriptor, source.root / file)
                if file not in archives and whole.read(0, min(4, whole.length)) != _ZIP:
                    continue
                for begin, length in archives.get(file, {0: whole.length}).items():
                    _check_archive(FileRange(descriptor, whole.path, begin, length), ordered)


def _offsets(tensor: Tensor) -> Iterator[tuple[str, int]]:
    if isinstance(tensor.chunks, Ranges):
        yield from ((file, offset) for _, _, file, offset in tensor.chunks.each())
    else:
        yield from ((c.file, c.offset) for c in tensor.chunks if not c.box.is_empty)


def _check_archive(window: FileRange, offsets: Sequence[int]) -> None:
    """`offsets` are offsets in the file, in order."""
    records = read_directory(window)
    for record in records.values():
        if not record.name.partition("/")[2].startswith("data/"):
            continue
        begin = window.offset + payload_of(window, record)
        first = bisect_left(offsets, begin)
        if first < len(offsets) and offsets[first] < begin + record.length:
            check_entry(window, record, _ADVICE)


def differing_replicas(
    source: Checkpoint,
    tensors: Mapping[Key, Tensor],
    budget: MemoryBudget,
    sources: Sources | None = None,
) -> Iterator[tuple[Key, str]]:
    """Compare each further copy of a block with its first, byte by byte; says of each part that
    differs in what. With `sources`, files that are not what they were are refused.

    Raises:
        BadFile: a file is truncated, or another than it was.
    """
    first: dict[tuple[Key, Chunk], Chunk] = {}

    def copies() -> Iterator[Copy]:
        for key, tensor in tensors.items():
            if covering_ranges(tensor, source.files) is None:
                for other, known in _replicas(tensor):
                    first[key, other] = known
                    target = Chunk(other.box, other.file, other.offset)
                    yield Copy(
                        key, target, tensor.dtype, tensor.dtype, (ChunkBox(other, other.box),)
                    )

    def compare(tile: Tile, scratch: Scratch) -> tuple[Key, str] | None:
        (part,) = tile.parts
        assert isinstance(part, BoxPart)
        (piece,) = part.pieces
        found = bytes(fill(files, tile, scratch)[0])
        known = first[part.key, piece.chunk]
        same = BoxPart(part.key, part.box, (ChunkBox(known, piece.box),))
        expected = fill(
            files,
            Tile(known.file, 0, tile.nbytes, tile.source_dtype, tile.target_dtype, (same,)),
            scratch,
        )[0]
        if found == expected:
            return None
        return part.key, _difference(source, part.key, known, piece.chunk, found, bytes(expected))

    with OpenFiles(source.root, sources=sources) as files, TileWorkers(budget) as workers:
        for difference in workers.each(copies(), compare):
            if difference is not None:
                yield difference


def _replicas(tensor: Tensor) -> Iterator[tuple[Chunk, Chunk]]:
    """(copy, first) of every block that is in several places."""
    known: dict[Box, Chunk] = {}
    for chunk in tensor.chunks:
        if chunk.box.is_empty:
            continue
        one = known.setdefault(chunk.box, chunk)
        if (one.file, one.offset) != (chunk.file, chunk.offset):
            yield chunk, one


def _difference(
    source: Checkpoint, key: Key, first: Chunk, other: Chunk, found: bytes, expected: bytes
) -> str:
    ours, theirs = np.frombuffer(found, np.uint8), np.frombuffer(expected, np.uint8)
    differing = int(np.count_nonzero(ours != theirs))
    return (
        f"{source.origin.path}: {key} is saved in {first.file} and in {other.file}, and the copies "
        f"differ in {differing} of {len(found)} bytes that were compared: they are from different "
        "saves, or one is damaged"
    )
