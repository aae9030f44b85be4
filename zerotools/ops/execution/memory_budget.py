"""The memory limit for the buffers of worker threads, and how the threads share it.

The budget is divided by the number of workers, so peak memory depends on neither the model nor its
largest tensor. Tiles stay small even under a large budget, because larger tiles are not faster
(measured in benchmarks/results/consolidate.md). Only tensors that source and target store in
different element orders get larger buffers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath
from zerotools.ops.execution.tiles import WIDEST_ITEM_BYTES

MAX_TILE_BYTES = 1024 * 1024
MIN_TILE_BYTES = 64 * 1024
MAX_FAR_TILE_BYTES = 8 * 1024 * 1024
FAR_WORKERS = 12
MAX_WIDE_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_MEMORY = 1024**3


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory limit for buffers: `max_memory` bytes, shared by `workers` threads."""

    max_memory: int = DEFAULT_MAX_MEMORY
    workers: int = field(default_factory=lambda: _usual_workers())
    is_far: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadRequest(f"--workers is {self.workers}; at least 1 is needed")
        if self.tile_bytes < MIN_TILE_BYTES:
            least = MIN_TILE_BYTES * self.buffers * self.workers
            raise BadRequest(
                f"--max-memory is {self.max_memory} bytes; {self.workers} workers need at least "
                f"{least}"
            )

    def reading(self, *roots: Path) -> MemoryBudget:
        """Return a budget with the same total memory for reading from `roots`. If a root is in an
        object store, the budget has more workers and larger buffers, because workers mostly wait
        for the store. If the caller chose the number of workers, this number is kept.
        """
        if self.is_far or not any(isinstance(root, RemotePath) for root in roots):
            return self
        workers = self.workers
        if workers == _usual_workers():
            room = self.max_memory // (_BUFFERS_OF_FAR_WORKER * MAX_TILE_BYTES)
            workers = max(1, min(FAR_WORKERS, room))
        return replace(self, workers=workers, is_far=True)

    @property
    def tile_bytes(self) -> int:
        """The size in bytes of one buffer of one worker."""
        return self._buffer(MAX_FAR_TILE_BYTES if self.is_far else MAX_TILE_BYTES)

    @property
    def wide_bytes(self) -> int:
        """The size in bytes of one buffer for tensors that source and target store in different
        element orders. Other tensors have buffers of `tile_bytes`.
        """
        return self._buffer(MAX_WIDE_BYTES)

    @property
    def buffers(self) -> int:
        """The number of tile-sized buffers that one worker has."""
        return _BUFFERS_OF_FAR_WORKER if self.is_far else _BUFFERS_PER_WORKER

    def _buffer(self, most: int) -> int:
        share = self.max_memory // (self.workers * self.buffers)
        return min(most, share) // WIDEST_ITEM_BYTES * WIDEST_ITEM_BYTES

    @property
    def max_total_bytes(self) -> int:
        """The size in bytes of all buffers together; at most `max_memory`."""
        return self.wide_bytes * self.buffers * self.workers


# A worker holds a tile, the bytes that it read for it, and numpy's arrays during a cast.
_BUFFERS_PER_WORKER = 3
# Also the bytes fetched for the tile: of twice the width, with up to as many bytes between them.
_BUFFERS_OF_FAR_WORKER = _BUFFERS_PER_WORKER + 4


def _usual_workers() -> int:
    return min(8, len(os.sched_getaffinity(0)))
