"""Decides which examples each step and each rank gets. The batches are the same for any number of
ranks.

A position counts the examples of a run over all epochs. With n examples in the pool, position p is
in epoch `p // n` and has the example `shuffle(epoch)[p % n]`. A step takes the next `batch_size`
positions, and each rank takes an equal part of them.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from zerotoolsd.trainer.data.example_pools import Example, ExamplePool, MixedPools, RankBatch
from zerotoolsd.trainer.data.shuffle import Shuffle


class Batches:
    """Finds the example for each position of the run: the pool is shuffled again in each epoch."""

    def __init__(self, pool: ExamplePool, *, seed: int) -> None:
        self.pool = pool
        self._seed = seed
        self._shuffle = Shuffle(len(pool), seed=seed, epoch=0)
        self._epoch = 0

    def number(self, position: int) -> int:
        """Return the number, in the pool, of the example at position `position` of the run."""
        epoch, index = divmod(position, len(self.pool))
        if epoch != self._epoch:
            self._shuffle = Shuffle(len(self.pool), seed=self._seed, epoch=epoch)
            self._epoch = epoch
        # Of a mixture, another epoch has other examples.
        before = epoch * len(self.pool) if isinstance(self.pool, MixedPools) else 0
        return before + self._shuffle[index]

    def examples(self, first: int, count: int) -> list[Example]:
        """Return the `count` examples that begin at position `first` of the run."""
        return [self.pool.example(self.number(first + offset)) for offset in range(count)]

    def rank_batch(self, first: int, batch_size: int, rank: int, world_size: int) -> RankBatch:
        """Return the examples of rank `rank` in the batch that begins at position `first` of the
        run.
        """
        numbers = [self.number(first + offset) for offset in range(batch_size)]
        begin, count = rank_part(0, batch_size, rank, world_size)
        return RankBatch(
            [self.pool.example(number) for number in numbers[begin : begin + count]],
            sum(self.pool.predicted(number) for number in numbers),
            sum(self.pool.size(number) for number in numbers),
        )


def rank_part(first: int, batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the part of a batch that one rank gets, as (first position, number of positions). The
    batch begins at position `first`.
    """
    count = batch_size // world_size
    return first + rank * count, count


class Prefetch:
    """Reads the batches of one rank.

    While a step runs, a thread reads the batch of the next step.
    """

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

    def rank_batch(self, first: int) -> RankBatch:
        """Return this rank's examples in the batch that begins at position `first` of the run.

        Raises:
            BadFile: the data has changed since the job began.
        """
        known = self._ahead
        found = known[1] if known is not None and known[0] == first else self._read(first)
        batch = found.result()
        following = first + self._whose[0]
        self._ahead = (following, self._read(following))
        return batch

    def _read(self, first: int) -> Future[RankBatch]:
        return self._reader.submit(self._batches.rank_batch, first, *self._whose)
