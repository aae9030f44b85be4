"""Packs several examples into one sequence, in the same way for any number of ranks.

The examples are taken in a shuffled order, and each sequence is filled until the next example does
not fit. This plan is made only once. So each epoch shuffles whole sequences, not single examples.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from zerotoolsd.trainer.data.example_pools import Example, ExamplePool
from zerotoolsd.trainer.data.example_store import PLACE_TYPE, open_numbers
from zerotoolsd.trainer.data.shuffle import Shuffle


def plan_packs(pool: ExamplePool, length: int, seed: int, path: Path) -> None:
    """Plan the packed sequences, and write the plan to `path`.

    The plan is a file of numbers. For each sequence, it has the position of the sequence's first
    example in the shuffled order of `pool`. The last number is the number of examples. A sequence
    has at most `length` tokens; a longer example gets its own sequence.
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
    """A pool of the packed sequences that `plan_packs` planned."""

    def __init__(self, pool: ExamplePool, path: Path, seed: int) -> None:
        self._pool = pool
        self._starts = open_numbers(path, PLACE_TYPE)
        self._order = _order(pool, seed)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _numbers(self, number: int) -> list[int]:
        return [self._order[at] for at in range(*self._starts.read(number, number + 2).tolist())]

    def example(self, number: int) -> Example:
        """Return packed sequence `number` as one example, with a segment for each example in it."""
        parts = [self._pool.example(inner) for inner in self._numbers(number)]
        return join_examples(parts)

    def predicted(self, number: int) -> int:
        return sum(self._pool.predicted(inner) for inner in self._numbers(number))

    def size(self, number: int) -> int:
        return sum(self._pool.size(inner) for inner in self._numbers(number))


def join_examples(parts: Sequence[Example]) -> Example:
    """Join the examples `parts` into one packed example, with a segment for each of them."""
    return Example(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
        tuple(itertools.chain.from_iterable(part.lengths for part in parts)),
    )
