"""The worker threads that move or compare tensor data.

Each worker handles one tile at a time, in its own buffers. A `MemoryBudget` gives the number of
workers and the size of their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Event, Lock
from time import monotonic
from types import TracebackType
from typing import TypeVar

from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.memory_budget import MemoryBudget
from zerotools.ops.execution.plan import Copy, RangeCopy
from zerotools.ops.execution.tiles import Tile, tiles_of

# The interval at which the consumer of results wakes: a thread that wakes takes the interpreter
# from those that work, and for each of some thousand tiles that cost more than the tiles
# (benchmarks/results/diff.md).
_TELLING_SECONDS = 0.01

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class TileWorkers:
    """The worker threads of a budget, each with its own buffers, and one more thread for work
    without buffers. Use as a context manager."""

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
        """Call `work` for every tile of `copies`, and yield its results in any order.

        `needed` is passed to `tiles_of`.
        """
        size, wide = self.budget.tile_bytes, self.budget.wide_bytes
        return self.share(tiles_of(copies, size, needed, wide_bytes=wide), work)

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
