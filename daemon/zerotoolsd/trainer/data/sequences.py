"""What a step trains on: sequences with what is to be predicted, numbered, read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.corpus import Tokens
from zerotoolsd.trainer.data.shuffle import Shuffle

IGNORED = -100
"""In the place of a token that nobody is asked to predict: the number of torch and transformers."""


Ids = npt.NDArray[Any]
"""Token ids, of one dimension."""


@dataclass(frozen=True, eq=False)
class Example:
    """`inputs` are what the model reads, `targets` what it is to say.

    A causal model says `targets[i]` after it has read `inputs` up to i; an encoder-decoder reads
    all `inputs` first. `segments` are the lengths of the parts of a packed sequence, which must not
    see one another.
    """

    inputs: Ids | Sequence[int]
    targets: Ids | Sequence[int]
    segments: tuple[int, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of its segments: one, where it is not packed."""
        return self.segments or (len(self.inputs),)

    def silent(self) -> Example:
        """The same, with nothing to predict."""
        return replace(self, targets=np.full(len(self.targets), IGNORED))


@dataclass(frozen=True)
class RankBatch:
    """A rank's examples of a step, how many tokens all ranks are to predict in it, and how many go
    through the model on all of them."""

    examples: Sequence[Example]
    predicted: int
    tokens: int


class ExamplePool(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def example(self, number: int) -> Example:
        """The example of that number."""

    def predicted(self, number: int) -> int:
        """How many tokens of it are to be predicted."""

    def size(self, number: int) -> int:
        """How many tokens the model reads, or says, for it."""


class TokenWindows:
    """A token stream cut into windows of `length + 1` tokens.

    Each begins with the last token of the one before, so that every token but the first is
    predicted once in an epoch.
    """

    def __init__(self, tokens: Tokens, length: int, key: str = "data.text") -> None:
        """
        Raises:
            BadRequest: there is not even one window in `tokens`, which `key` names.
        """
        self.tokens = tokens
        self.length = length
        self._count = (len(tokens) - 1) // length
        if self._count < 1:
            raise BadRequest(
                f"{key} has {len(tokens)} tokens and one sequence takes "
                f"data.sequence_length + 1 = {length + 1}: add text or shorten it"
            )

    def __len__(self) -> int:
        return self._count

    def example(self, number: int) -> Example:
        """Window `number`."""
        start = number * self.length
        ids = self.tokens.read(start, start + self.length + 1)
        return Example(ids[:-1], ids[1:])

    def predicted(self, number: int) -> int:
        """All but the first token."""
        return self.length

    def size(self, number: int) -> int:
        """As many as are predicted."""
        return self.length


class PoolSubset:
    """The examples at positions [first, stop) of a shuffle of `pool`: for what is held out."""

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
        """As of the pool."""
        return self._pool.example(self._number(number))

    def predicted(self, number: int) -> int:
        """As of the pool."""
        return self._pool.predicted(self._number(number))

    def size(self, number: int) -> int:
        """As of the pool."""
        return self._pool.size(self._number(number))


def hold_out(pool: ExamplePool, fraction: float, seed: int) -> tuple[ExamplePool, ExamplePool]:
    """(what is trained on, what is evaluated on), chosen by `seed`: at least one example each.

    Raises:
        BadRequest: there is only one.
    """
    out = max(1, round(len(pool) * fraction))
    if out >= len(pool):
        raise BadRequest(
            f"eval.fraction = {fraction:g} of {len(pool)} sequences leaves none to train on: "
            "lower it, or add data"
        )
    rest = len(pool) - out
    return PoolSubset(pool, 0, rest, seed=seed), PoolSubset(pool, rest, len(pool), seed=seed)
