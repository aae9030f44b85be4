"""Reads boxes of a checkpoint's tensors, of any format, as torch tensors: a rank's part of each.

Only the bytes between the first and the last element of a piece are read, at most PIECE_BYTES at a
time if they are contiguous.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import torch
from torch.distributed.tensor import DTensor

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.io.files.regular import open_regular
from zerotools.ops.execution.plan import distinct_chunks
from zerotoolsd.trainer.model.sharding import local_part

PIECE_BYTES = 64 << 20


def fill_shard(tensor: torch.Tensor, key: Key, stored: Tensor, reader: BoxReader) -> None:
    """Fill this rank's part of `tensor` from `stored`, which has its whole shape.

    Raises as `BoxReader.fill`.
    """
    if not isinstance(tensor, DTensor):
        reader.fill(tensor, key, stored, Box.whole(tuple(tensor.shape)))
        return
    local, kept = local_part(tensor)
    if local.numel():
        box = Box(tuple(part.start for part in kept), tuple(local.shape))
        reader.fill(local, key, stored, box)


class BoxReader(AbstractContextManager["BoxReader"]):
    """Reads tensors of `source`; its files stay open until it is closed."""

    def __init__(self, source: Checkpoint) -> None:
        self._source = source
        self._files: dict[Path, int] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def fill(self, into: torch.Tensor, key: Key, tensor: Tensor, box: Box) -> None:
        """Copy `box` of `tensor` into `into`, which has its shape, in the type of `into`.

        Raises:
            BadFile: the tensor is incomplete, or its file truncated.
        """
        for chunk in distinct_chunks(key, tensor, self._source):
            common = chunk.box.intersect(box)
            if common is None or common.is_empty:
                continue
            for part in _parts(common, PIECE_BYTES // tensor.dtype.itemsize):
                inside = part.relative_to(box)
                place = tuple(
                    slice(start, start + size)
                    for start, size in zip(inside.start, inside.shape, strict=True)
                )
                into[place].copy_(self._read(key, tensor, chunk, part))

    def _read(self, key: Key, tensor: Tensor, chunk: Chunk, box: Box) -> torch.Tensor:
        strides = chunk.strides or row_major_strides(chunk.box.shape)
        inside = box.relative_to(chunk.box)
        first = sum(i * s for i, s in zip(inside.start, strides, strict=True))
        elements = 1 + sum((n - 1) * s for n, s in zip(box.shape, strides, strict=True))
        size = tensor.dtype.itemsize
        path = self._source.path_of(chunk)
        data = bytearray(elements * size)
        got = os.preadv(self._open(path), [data], chunk.offset + first * size)
        if got != len(data):
            raise BadFile(f"{path}: {key} ends after the end of the file; it is truncated")
        flat = torch.frombuffer(data, dtype=getattr(torch, tensor.dtype.name))
        return flat.as_strided(box.shape, strides)

    def _open(self, path: Path) -> int:
        if path not in self._files:
            try:
                self._files[path] = open_regular(path)
            except OSError as error:
                raise BadFile(f"{path} cannot be opened: {error.strerror}") from None
        return self._files[path]


def _parts(box: Box, most: int) -> Iterator[Box]:
    """Yield parts of `box`, cut along its first dimensions, of at most `most` elements."""
    cut = next((d for d, size in enumerate(box.shape) if size > 1), None)
    if cut is None or box.numel <= most:
        yield box
        return
    half = box.shape[cut] // 2
    for begin, size in ((0, half), (half, box.shape[cut] - half)):
        start = (*box.start[:cut], box.start[cut] + begin, *box.start[cut + 1 :])
        yield from _parts(Box(start, (*box.shape[:cut], size, *box.shape[cut + 1 :])), most)
