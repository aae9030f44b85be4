"""The examples of each step: the same at any number of ranks.

Position p counts the examples of a run over all epochs. It is example `shuffle(epoch)[p % n]` of
the pool's n examples, in epoch `p // n`. A step takes the next `batch_size` positions, and each
rank an equal part of them.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from zerotoolsd.trainer.data.example_pools import Example, ExamplePool, MixedPools, RankBatch
from zerotoolsd.trainer.data.shuffle import Shuffle


class Batches:
    """The order of the examples of a pool, over all epochs."""

    def __init__(self, pool: ExamplePool, *, seed: int) -> None:
        self.pool = pool
        self._seed = seed
        self._shuffle = Shuffle(len(pool), seed=seed, epoch=0)
        self._epoch = 0

    def number(self, position: int) -> int:
        """Return the number of the example at a position."""
        epoch, index = divmod(position, len(self.pool))
        if epoch != self._epoch:
            self._shuffle = Shuffle(len(self.pool), seed=self._seed, epoch=epoch)
            self._epoch = epoch
        # Of a mixture, another epoch has other examples.
        before = epoch * len(self.pool) if isinstance(self.pool, MixedPools) else 0
        return before + self._shuffle[index]

    def examples(self, first: int, count: int) -> list[Example]:
        """Return `count` examples from position `first` on."""
        return [self.pool.example(self.number(first + offset)) for offset in range(count)]

    def share(self, first: int, batch_size: int, rank: int, world_size: int) -> RankBatch:
        """Return the part of `rank` in the batch that begins at position `first`."""
        numbers = [self.number(first + offset) for offset in range(batch_size)]
        begin, count = rank_share(0, batch_size, rank, world_size)
        return RankBatch(
            [self.pool.example(number) for number in numbers[begin : begin + count]],
            sum(self.pool.predicted(number) for number in numbers),
            sum(self.pool.size(number) for number in numbers),
        )


def rank_share(first: int, batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return (first position, number of positions) of a rank's part of a batch that begins at
    `first`."""
    count = batch_size // world_size
    return first + rank * count, count


class Prefetch:
    """Reads the batches of one rank. A thread reads the next batch while a step runs."""

    def __init__(self, batches: Batches, batch_size: int, rank: int, world_size: int) -> None:
        self._batches = batches
        self._whose = (batch_size, rank, world_size)
        self._reader = ThreadPoolExecutor(1, "next batch")
        self._ahead: tuple[int, Future[RankBatch]] | None = None

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.shutdown(cancel_futures=True)

    def share(self, first: int) -> RankBatch:
        """Return this rank's part of the batch that begins at position `first`.

        Raises:
            BadFile: the data has changed since the job began.
        """
        known = self._ahead
        found = known[1] if known is not None and known[0] == first else self._read(first)
        share = found.result()
        following = first + self._whose[0]
        self._ahead = (following, self._read(following))
        return share

    def _read(self, first: int) -> Future[RankBatch]:
        return self._reader.submit(self._batches.share, first, *self._whose)
