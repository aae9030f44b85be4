"""The worker threads that move or compare tensor data, and their memory.

Each worker handles one tile at a time, in its own buffers. The budget is divided by the number of
workers, so peak memory depends on neither the model nor its largest tensor. Tiles stay small even
under a large budget, because larger tiles are hardly faster (measured in
benchmarks/results/reshard.md). Only tensors that source and target store in different element
orders get larger buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from time import monotonic
from types import TracebackType
from typing import TypeVar

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.plan_copies import Copy, RangeCopy
from zerotools.ops.execution.tiles import WIDEST_ITEM_BYTES, Tile, alternate_files, tiles_of

MAX_TILE_BYTES = 2 * 1024 * 1024
MIN_TILE_BYTES = 64 * 1024
MAX_FAR_TILE_BYTES = 8 * 1024 * 1024
FAR_WORKERS = 12
MAX_WIDE_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_MEMORY = 1024**3
# The interval at which the consumer of results wakes: a thread that wakes takes the interpreter
# from those that work, and for each of some thousand tiles that cost more than the tiles
# (benchmarks/results/diff.md).
_TELLING_SECONDS = 0.01

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory limit for buffers: `max_memory` bytes, shared by `workers` threads."""

    max_memory: int = DEFAULT_MAX_MEMORY
    workers: int = field(default_factory=lambda: _usual_workers())
    is_far: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadRequest(
                f"--workers is {self.workers}, but at least 1 is needed; choose a larger number"
            )
        if self.tile_bytes < MIN_TILE_BYTES:
            least = MIN_TILE_BYTES * self.buffers * self.workers
            raise BadRequest(
                f"--max-memory is {self.max_memory} bytes, but {self.workers} workers need at "
                f"least {least}; raise --max-memory, or take fewer --workers"
            )

    def reading(self, *roots: Path) -> MemoryBudget:
        """Return a budget with the same total memory for reading from `roots`. If a root is in an
        object store, the budget has more workers and larger buffers, because workers mostly wait
        for the store. A number of workers that the caller chose is kept."""
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
        element orders. Other tensors have buffers of `tile_bytes`."""
        return self._buffer(MAX_WIDE_BYTES)

    @property
    def buffers(self) -> int:
        """The number of buffers that one worker has."""
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


class TileWorkers:
    """The worker threads of a budget, each with its own buffers, and one more thread for work
    without buffers. A context manager."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self._pool = ThreadPoolExecutor(budget.workers, thread_name_prefix="tile")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="flush")

    def __enter__(self) -> TileWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in (self._pool, self._aside):
            pool.shutdown(wait=True, cancel_futures=True)

    def each(
        self,
        copies: Iterable[Copy | RangeCopy],
        work: Callable[[Tile, Scratch], Result],
        needed: Mapping[str, int] | None = None,
    ) -> Iterator[Result]:
        """Call `work` for every tile of `copies`, and yield its results in any order. `needed` is
        passed to `tiles_of`."""
        size, wide = self.budget.tile_bytes, self.budget.wide_bytes
        tiles = tiles_of(copies, size, needed, wide_bytes=wide)
        return self.share(alternate_files(tiles) if self.budget.workers > 1 else tiles, work)

    def share(
        self, pieces: Iterator[Piece], work: Callable[[Piece, Scratch], Result], *, tiles: int = 1
    ) -> Iterator[Result]:
        """Call `work` for every piece, and yield the results in any order. `work` also gets buffers
        that can hold `tiles` tiles.

        A thread takes the next piece when it has finished one. It hands over its results in
        batches, some milliseconds later.
        """
        size, wide = self.budget.tile_bytes, self.budget.wide_bytes
        taking, stopped = Lock(), Event()
        results: SimpleQueue[list[Result] | None] = SimpleQueue()

        def take() -> Piece | None:
            with taking:
                return None if stopped.is_set() else next(pieces, None)

        def run() -> None:
            done: list[Result] = []
            told = monotonic()
            try:
                scratch = Scratch(tiles * size, size, wide)
                while (piece := take()) is not None:
                    done.append(work(piece, scratch))
                    if monotonic() - told >= _TELLING_SECONDS:
                        results.put(done)
                        done, told = [], monotonic()
            finally:
                stopped.set()
                results.put(done)
                results.put(None)  # this thread has come to its end

        threads = [self._pool.submit(run) for _ in range(self.budget.workers)]
        try:
            for _ in threads:
                while (several := results.get()) is not None:
                    yield from several
        finally:
            stopped.set()
            wait(threads)
        for thread in threads:
            thread.result()

    def aside(self, work: Callable[[], None]) -> Future[None]:
        """Run a function that needs no buffers in a separate thread while the workers process
        tiles. Such functions run in the order of the calls."""
        return self._aside.submit(work)
