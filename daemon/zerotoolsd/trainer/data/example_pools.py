"""Pools of numbered training examples that are read one at a time: windows of text, held-out parts
of a pool, and mixtures of pools.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.shuffle import Shuffle
from zerotoolsd.trainer.data.token_stream import Tokens

IGNORED = -100
"""The target of a token that is not learned: -100, as in torch and transformers."""


Ids = npt.NDArray[Any]
"""Token ids, one-dimensional."""


@dataclass(frozen=True, eq=False)
class Example:
    """A training example: `inputs` are the ids that the model reads, `targets` the ids that it
    learns to predict.

    A causal model predicts `targets[i]` after it has read `inputs[: i + 1]`. An encoder-decoder
    reads all `inputs` first. In a packed sequence, `segments` are the lengths of the examples in
    it. These examples must not see each other.
    """

    inputs: Ids | Sequence[int]
    targets: Ids | Sequence[int]
    segments: tuple[int, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the segments; one length if the example is not packed."""
        return self.segments or (len(self.inputs),)

    def without_targets(self) -> Example:
        """Return the same example with all targets `IGNORED`."""
        return replace(self, targets=np.full(len(self.targets), IGNORED))


@dataclass(frozen=True)
class RankBatch:
    """The examples of one rank in a step.

    `predicted` is the number of tokens to predict, and `tokens` the number of tokens that the model
    reads, both over all ranks.
    """

    examples: Sequence[Example]
    predicted: int
    tokens: int


class ExamplePool(Protocol):
    """A set of training examples with the numbers 0 to len - 1."""

    def __len__(self) -> int: ...

    def example(self, number: int) -> Example:
        """Return the example with the number `number`."""

    def predicted(self, number: int) -> int:
        """Return the number of tokens of example `number` that the model learns to predict."""

    def size(self, number: int) -> int:
        """Return the number of tokens of example `number` that the model reads or predicts."""


class TokenWindows:
    """A token stream as a pool of examples: windows of `length + 1` tokens.

    Each window begins with the last token of the previous window. So in an epoch, each token of the
    stream except the first is predicted once.
    """

    def __init__(self, tokens: Tokens, length: int, key: str = "data.text") -> None:
        """Compute the number of windows of `length + 1` tokens in `tokens`.

        Raises:
            BadRequest: the stream is shorter than one window. The message names the job key `key`.
        """
        self.tokens = tokens
        self.length = length
        self._count = (len(tokens) - 1) // length
        if self._count < 1:
            raise BadRequest(
                f"{key} has {len(tokens)} tokens, but one sequence takes data.sequence_length + "
                f"1 = {length + 1}: add text, or lower data.sequence_length"
            )

    def __len__(self) -> int:
        return self._count

    def example(self, number: int) -> Example:
        start = number * self.length
        ids = self.tokens.read(start, start + self.length + 1)
        return Example(ids[:-1], ids[1:])

    def predicted(self, number: int) -> int:
        """Return the number of learned tokens of a window: all but its first token."""
        return self.length

    def size(self, number: int) -> int:
        return self.length


class PoolSubset:
    """A part of `pool`: the examples at positions `first` to `stop - 1` of a shuffle of the pool.

    A subset is the training part or the held-out part of the pool.
    """

    def __init__(self, pool: ExamplePool, first: int, stop: int, *, seed: int) -> None:
        self._pool = pool
        self._first = first
        self._count = stop - first
        # No epoch of the training has this number: they count from 0.
        self._shuffle = Shuffle(len(pool), seed=seed, epoch=-1)

    def __len__(self) -> int:
        return self._count

    def _number(self, number: int) -> int:
        return self._shuffle[self._first + number]

    def example(self, number: int) -> Example:
        return self._pool.example(self._number(number))

    def predicted(self, number: int) -> int:
        return self._pool.predicted(self._number(number))

    def size(self, number: int) -> int:
        return self._pool.size(self._number(number))


def hold_out(pool: ExamplePool, fraction: float, seed: int) -> tuple[ExamplePool, ExamplePool]:
    """Divide `pool` into (training examples, evaluation examples). Each part has at least one
    example.

    `fraction` is the fraction of the examples that is held out for evaluation, and `seed` decides
    which examples these are.

    Raises:
        BadRequest: no example would be left for training.
    """
    out = max(1, round(len(pool) * fraction))
    if out >= len(pool):
        raise BadRequest(
            f"eval.fraction = {fraction:g} of {len(pool)} sequences leaves no sequence for "
            "training: lower eval.fraction, or add data"
        )
    rest = len(pool) - out
    return PoolSubset(pool, 0, rest, seed=seed), PoolSubset(pool, rest, len(pool), seed=seed)


def share_counts(weights: Sequence[float], total: int) -> list[int]:
    """Divide `total` examples in proportion to `weights`; return the number for each weight.

    Exact shares are rounded up or down, so that the sum of the numbers is `total`.
    """
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda n: (counts[n] - exact[n], n))
    for number in by_rest[: total - sum(counts)]:
        counts[number] += 1
    return counts


class JoinedPools:
    """Joins several pools: the examples of the first pool have the first numbers, then those of the
    second pool, and so on.
    """

    def __init__(self, pools: Sequence[ExamplePool]) -> None:
        self._pools = pools
        self._ends = list(itertools.accumulate(map(len, pools)))

    def __len__(self) -> int:
        return self._ends[-1]

    def _at(self, number: int) -> tuple[ExamplePool, int]:
        index = bisect_right(self._ends, number)
        return self._pools[index], number - (self._ends[index] - len(self._pools[index]))

    def example(self, number: int) -> Example:
        pool, inner = self._at(number)
        return pool.example(inner)

    def predicted(self, number: int) -> int:
        pool, inner = self._at(number)
        return pool.predicted(inner)

    def size(self, number: int) -> int:
        pool, inner = self._at(number)
        return pool.size(inner)


class MixedPools(JoinedPools):
    """A mixture of several pools with weights. The order is the same for any number of ranks.

    Example `k` of epoch `e` has the number `e * len + k`. An epoch has as many examples as all
    pools together, and takes them from the pools in proportion to the weights.

    Each pool is shuffled separately, and again whenever all its examples were used. So the examples
    of a small pool with a large weight occur several times in an epoch. From a large pool with a
    small weight, an epoch uses only some examples, and the next epoch uses the following ones.
    """

    def __init__(self, pools: Sequence[ExamplePool], weights: Sequence[float], seed: int) -> None:
        super().__init__(pools)
        self._seed = seed
        self.counts = share_counts(weights, super().__len__())
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
