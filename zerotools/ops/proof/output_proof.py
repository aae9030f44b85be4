"""Read an output back, and prove it equal to the cast of its source.

It is read tile by tile, in the order of writing: a source in another order is read in long runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.target import Target
from zerotools.formats.format import ReadOptions
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.regular import source_file
from zerotools.io.files.sources import Sources, recording
from zerotools.io.numeric.equal_bytes import are_equal
from zerotools.io.numeric.gather import Scratch
from zerotools.io.numeric.numpy_dtypes import Cast
from zerotools.ops.execution.fill import fill
from zerotools.ops.execution.plan import Copy, RangeCopy
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.execution.workers import MemoryBudget, TileWorkers

_READ_BYTES = 2**20


def compare_bytes(
    copies: Iterable[Copy | RangeCopy],
    source_root: Path,
    target: Target,
    directory: Path,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None],
    cast: Cast,
    sources: Sources,
) -> int:
    """Make every tile again from the source, and compare it with the files in `directory`, read
    from the disk if the system allows it. Return the number of equal bytes.

    Raises:
        BadFile: the first difference, by tensor, file and byte offset.
    """

    def compare(tile: Tile, scratch: Scratch) -> int:
        data, _ = fill(reads, tile, scratch, cast=cast)
        found = scratch.read[: len(data)]
        outputs.read_into(tile.file, tile.offset, found.data)
        expected = np.frombuffer(data, np.uint8)
        if not are_equal(found, expected):
            at = int(np.argmax(found != expected))
            raise BadFile(
                f"{target.checkpoint.root / tile.file} differs from the data that was written: "
                f"byte {tile.offset + at}, in {tile.key_of(at)}, is {found[at]:#04x}, but the "
                f"source gives {expected[at]:#04x}; no output is kept: check the disk, and try "
                "again"
            )
        return len(data)

    total = 0
    with (
        OpenFiles(source_root, sources=sources) as reads,
        OpenFiles(directory) as outputs,
        TileWorkers(budget) as workers,
    ):
        for file in target.files:
            outputs.forget(file)
        _compare_carried(target, directory)
        for count in workers.each(copies, compare):
            total += count
            on_bytes(count)
    return total


def _compare_carried(target: Target, directory: Path) -> None:
    for file, file_plan in target.files.items():
        for carried in file_plan.carried:
            with (
                source_file(carried.source) as carried_from,
                carried_from.stream() as source,
                source_file(directory / file, is_source=False) as written,
                written.stream() as output,
            ):
                source.seek(carried.source_offset)
                output.seek(carried.offset)
                for done in range(0, carried.length, _READ_BYTES):
                    count = min(_READ_BYTES, carried.length - done)
                    if source.read(count) != output.read(count):
                        raise BadFile(
                            f"{target.checkpoint.root / file} differs from {carried.source} near "
                            f"byte {carried.offset + done}; no output is kept: check the disk, "
                            "and try again"
                        )


def read_written_back(
    target: Target, directory: Path, table: formats.FormatTable = formats.FORMATS
) -> Checkpoint:
    """Return the metadata of the output, compared with the plan: names, types, shapes, positions.

    Raises:
        BadFile: the format's reader finds another layout.
    """
    with recording() as read:
        found = formats.format_of(target.checkpoint, table).read(directory, ReadOptions())
    tensors = found.tensors if target.compared is None else target.compared(found)
    expected = {**target.checkpoint.tensors, **target.carried}
    expected = {key: tensor for key, tensor in expected.items() if key not in target.unlisted}
    below = found.root.relative_to(directory)
    places = {_weight(key): _places(tensor, below) for key, tensor in tensors.items()}
    planned = {_weight(key): _places(tensor, Path()) for key, tensor in expected.items()}
    if places != planned:
        differing = sorted(
            str(key)
            for key in places.keys() | planned.keys()
            if places.get(key) != planned.get(key)
        )
        raise BadFile(
            f"{target.checkpoint.root} reads back with another layout: {differing[0]} differs, "
            f"and {len(differing) - 1} others; no output is kept"
        )
    return replace(found, stamps=read.stamps)


def _weight(key: Key) -> Key:
    """Return the key with role `param` for a buffer: formats for weights do not tell them apart."""
    return Key(key.name, "param" if key.role == "buffer" else key.role)


def _places(tensor: Tensor, root: Path) -> Mapping[tuple[str, int, Box], tuple[object, ...]]:
    """Return the positions of a tensor's chunks; files are relative to the output, with `root` in
    it."""
    facts = (tensor.dtype, tensor.shape)
    chunks = (chunk for chunk in tensor.chunks if not chunk.box.is_empty)
    return {
        ((root / chunk.file).as_posix(), chunk.offset, chunk.box): facts for chunk in chunks
    } or {("", 0, Box.whole(tensor.shape)): facts}
