"""Tiles: the unit of work of everything that moves or compares tensor data.

Each copy is cut into tiles that are contiguous in their target file. One worker handles a tile in
its own buffers. The budget is divided by the number of workers, so peak memory depends on neither
the model nor its largest tensor. Tiles stay small even under a large budget, because they are
fastest when they fit in a core's cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from zerotools.core.boxes import Box, BoxIndex, contiguous_pieces
from zerotools.core.checkpoint import Piece
from zerotools.core.errors import BadRequest
from zerotools.io.copy import Scratch
from zerotools.ops.plan import Copy

MAX_TILE_BYTES = 4 * 1024 * 1024
MIN_TILE_BYTES = 64 * 1024
DEFAULT_MAX_MEMORY = 1024**3
TASKS_PER_WORKER = 4
WIDEST_ITEM_BYTES = 16

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Budget:
    """`max_memory` bytes of buffers in all, over `workers` threads."""

    max_memory: int = DEFAULT_MAX_MEMORY
    workers: int = field(default_factory=lambda: min(8, len(os.sched_getaffinity(0))))

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadRequest(f"--workers is {self.workers}; at least 1 is needed")
        if self.tile_bytes < MIN_TILE_BYTES:
            least = MIN_TILE_BYTES * _BUFFERS_PER_WORKER * self.workers
            raise BadRequest(
                f"--max-memory is {self.max_memory} bytes; {self.workers} workers need at least "
                f"{least}"
            )

    @property
    def tile_bytes(self) -> int:
        """Bytes of one buffer of one worker."""
        share = self.max_memory // (self.workers * _BUFFERS_PER_WORKER)
        return min(MAX_TILE_BYTES, share) // WIDEST_ITEM_BYTES * WIDEST_ITEM_BYTES

    @property
    def most_memory(self) -> int:
        """Bytes of all buffers together, which is at most `max_memory`."""
        return self.tile_bytes * _BUFFERS_PER_WORKER * self.workers


# A worker holds a tile, what it read for it, and what numpy makes while it casts.
_BUFFERS_PER_WORKER = 3


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of a target chunk, its offset in the file, and the pieces that fill it."""

    copy: Copy
    box: Box
    offset: int
    pieces: tuple[Piece, ...]


def tiles_of(copies: Iterable[Copy], tile_bytes: int) -> Iterator[Tile]:
    """Cut copies into tiles of at most `tile_bytes`, in source and in target type."""
    for copy in copies:
        widest = max(copy.source_dtype.itemsize, copy.target_dtype.itemsize)
        index = BoxIndex([piece.box for piece in copy.pieces])
        offset = copy.target.offset
        for box in contiguous_pieces(copy.target.box, tile_bytes // widest):
            pieces = tuple(
                Piece(copy.pieces[position].chunk, common)
                for position, common in index.meeting(box)
            )
            yield Tile(copy, box, offset, pieces)
            offset += box.numel * copy.target_dtype.itemsize


class Workers:
    """The threads of a budget, each with its own buffers. Use as a context."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._pool = ThreadPoolExecutor(budget.workers, thread_name_prefix="tile")
        self._local = threading.local()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def each(
        self, copies: Iterable[Copy], work: Callable[[Tile, Scratch], Result]
    ) -> Iterator[Result]:
        """Do `work` on every tile, a few per worker at a time; results come in any order."""
        pending: set[Future[Result]] = set()
        for tile in tiles_of(copies, self._budget.tile_bytes):
            pending.add(self._pool.submit(self._with_scratch, work, tile))
            if len(pending) >= self._budget.workers * TASKS_PER_WORKER:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        done, _ = wait(pending)
        yield from (future.result() for future in done)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Do something that needs no buffers, among the tiles."""
        return self._pool.submit(work)

    def _with_scratch(self, work: Callable[[Tile, Scratch], Result], tile: Tile) -> Result:
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = Scratch(self._budget.tile_bytes, self._budget.tile_bytes)
            self._local.scratch = scratch
        return work(tile, scratch)
