"""Packs several examples into one sequence, the same at every number of ranks.

The examples are taken in a shuffled order and put one after the other into a sequence as long as
they fit. The plan is made once, so that an epoch is a shuffle of complete sequences.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from zerotoolsd.trainer.data.example_pools import Example, ExamplePool
from zerotoolsd.trainer.data.example_store import PLACE_TYPE, stored
from zerotoolsd.trainer.data.shuffle import Shuffle


def plan_packs(pool: ExamplePool, length: int, seed: int, path: Path) -> None:
    """Write to `path` where each sequence of `length` begins in the shuffled order, and the end.

    An example that is longer than `length` has a separate sequence.
    """
    with path.open("wb") as file:
        for start in _starts(pool, length, seed):
            array.array(PLACE_TYPE, [start]).tofile(file)


def _order(pool: ExamplePool, seed: int) -> Shuffle:
    # No epoch of the training has this number: they count from 0.
    return Shuffle(len(pool), seed=seed, epoch=-2)


def _starts(pool: ExamplePool, length: int, seed: int) -> Iterator[int]:
    order, filled = _order(pool, seed), length
    for position in range(len(pool)):
        size = pool.size(order[position])
        if filled + size > length:
            yield position
            filled = 0
        filled += size
    yield len(pool)


class PackedSequences:
    """The sequences that `plan_packs` planned."""

    def __init__(self, pool: ExamplePool, path: Path, seed: int) -> None:
        self._pool = pool
        self._starts = stored(path, PLACE_TYPE)
        self._order = _order(pool, seed)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _numbers(self, number: int) -> list[int]:
        return [self._order[at] for at in range(*self._starts.read(number, number + 2).tolist())]

    def example(self, number: int) -> Example:
        """Return the examples of a sequence, one after the other."""
        parts = [self._pool.example(inner) for inner in self._numbers(number)]
        return join(parts)

    def predicted(self, number: int) -> int:
        """Return the number of learned tokens of all its examples."""
        return sum(self._pool.predicted(inner) for inner in self._numbers(number))

    def size(self, number: int) -> int:
        """Return the size of all its examples."""
        return sum(self._pool.size(inner) for inner in self._numbers(number))


def join(parts: Sequence[Example]) -> Example:
    """Join `parts` into one sequence with all of their segments."""
    return Example(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
        tuple(itertools.chain.from_iterable(part.lengths for part in parts)),
    )
