"""Several pools with weights, as one pool: the same order at every number of ranks.

An epoch has as many examples as all pools together, shared among the pools by their weights. A
pool's examples are taken in its own shuffles, one after the other: those of a small pool with a
large weight come several times in an epoch, and those of a large one with a small weight continue
in the next epoch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from zerotoolsd.trainer.data.sequences import Example, ExamplePool
from zerotoolsd.trainer.data.shuffle import Shuffle


def shares(weights: Sequence[float], total: int) -> list[int]:
    """Return how many of `total` examples each weight gets: to within one of its share."""
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda n: (counts[n] - exact[n], n))
    for number in by_rest[: total - sum(counts)]:
        counts[number] += 1
    return counts


class JoinedPools:
    """Pools one after the other."""

    def __init__(self, pools: Sequence[ExamplePool]) -> None:
        self._pools = pools
        self._ends = list(itertools.accumulate(map(len, pools)))

    def __len__(self) -> int:
        return self._ends[-1]

    def _at(self, number: int) -> tuple[ExamplePool, int]:
        index = bisect_right(self._ends, number)
        return self._pools[index], number - (self._ends[index] - len(self._pools[index]))

    def example(self, number: int) -> Example:
        """Return the example of its pool."""
        pool, inner = self._at(number)
        return pool.example(inner)

    def predicted(self, number: int) -> int:
        """Return the number of learned tokens, from its pool."""
        pool, inner = self._at(number)
        return pool.predicted(inner)

    def size(self, number: int) -> int:
        """Return the size, from its pool."""
        pool, inner = self._at(number)
        return pool.size(inner)


class MixedPools(JoinedPools):
    """Pools with weights. Number `k` of epoch `e` is example `e * len + k`, whatever `e`."""

    def __init__(self, pools: Sequence[ExamplePool], weights: Sequence[float], seed: int) -> None:
        super().__init__(pools)
        self._seed = seed
        self.counts = shares(weights, super().__len__())
        self._stops = list(itertools.accumulate(self.counts))
        self._shuffles: dict[int, tuple[int, Shuffle]] = {}

    def _at(self, number: int) -> tuple[ExamplePool, int]:
        epoch, place = divmod(number, len(self))
        index = bisect_right(self._stops, place)
        pool = self._pools[index]
        drawn = epoch * self.counts[index] + place - (self._stops[index] - self.counts[index])
        turn, inner = divmod(drawn, len(pool))
        known = self._shuffles.get(index)
        if known is None or known[0] != turn:
            # No epoch of the training has such a number: they count from 0.
            known = (turn, Shuffle(len(pool), seed=self._seed, epoch=-3 - turn))
            self._shuffles[index] = known
        return pool, known[1][inner]
