"""The bytes of a file that are elements of tensors, so that one pass over the file sees them all.

A thousand ranks make millions of ranges: each is kept as three numbers, and not as an object.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Ranges
from zerotools.io.numeric.numpy_dtypes import Array


@dataclass(frozen=True)
class ClaimedBytes:
    """`keys` are the tensors of floating-point numbers by their numbers. `places` has rows for each
    file: (first byte, end, number of the tensor, largest end so far), in order. `elsewhere` are
    tensors with elements that are not contiguous in their files, which one pass cannot separate."""

    keys: list[Key] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    places: dict[str, Array] = field(default_factory=dict)
    elsewhere: list[Key] = field(default_factory=list)

    def within(self, file: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first byte, end, tensor) of the elements in [begin, end) of a file."""
        places = self.places.get(file)
        if places is None:
            return
        first = int(places[:, 3].searchsorted(begin, "right"))
        last = int(places[:, 0].searchsorted(end, "left"))
        for start, stop, number, _ in places[first:last].tolist():
            if stop > begin:
                yield start, stop, number


def claims_of(checkpoint: Checkpoint) -> ClaimedBytes:
    """Return the claims of every tensor of floating-point numbers; each box counts once."""
    claims, rows = ClaimedBytes(), dict[str, "array[int]"]()
    for key, tensor in checkpoint.tensors.items():
        if not tensor.dtype.is_float or not tensor.numel:
            continue
        try:
            found = list(_extents(tensor))
        except BadFile:  # the proof of a tensor reports faults of its items
            continue
        if any(size is None for _, _, size in found):
            claims.elsewhere.append(key)
            continue
        number = len(claims.keys)
        claims.keys.append(key)
        claims.tensors.append(tensor)
        for file, offset, size in found:
            rows.setdefault(file, array("q")).extend((offset, offset + (size or 0), number))
    for file, numbers in rows.items():
        table = np.frombuffer(numbers, np.int64).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        reach = np.maximum.accumulate(table[:, 1])
        # By columns: on one that is not contiguous, each search would make a copy first.
        claims.places[file] = np.asfortranarray(np.column_stack((table, reach)))
    return claims


def _extents(tensor: Tensor) -> Iterator[tuple[str, int, int | None]]:
    """Yield (file, offset, bytes) of each box once; None bytes if others lie between its
    elements."""
    itemsize = tensor.dtype.itemsize
    if isinstance(tensor.chunks, Ranges):
        for begin, end, file, offset in tensor.chunks.each():
            yield file, offset, (end - begin) * itemsize
        return
    known: set[Box] = set()
    for chunk in tensor.chunks:
        if chunk.box.is_empty or chunk.box in known:
            continue
        known.add(chunk.box)
        size = chunk.box.numel * itemsize
        yield chunk.file, chunk.offset, size if chunk.extent(tensor.dtype) == size else None
