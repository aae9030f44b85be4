"""Llamas of any size, and the search for the largest that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.zero_training.cases import llama
from zerotools.ops.estimate.state_memory import Parameter

HEAD = 64
VOCABULARY = 32_000


@dataclass(frozen=True)
class Size:
    """A Llama of `layers` blocks of a hidden size of `width`."""

    width: int
    layers: int

    @property
    def inner(self) -> int:
        """The size between the two matrices of a block's MLP: 8/3 of the width, as Llama's is."""
        return HEAD * round(8 / 3 * self.width / HEAD)

    @property
    def numel(self) -> int:
        """Its parameters."""
        return sum(parameter.numel for parameter in self.parameters())

    def config(self, longest: int) -> dict[str, Any]:
        """Its config, for sequences of at most `longest` tokens."""
        return llama(
            self.width,
            self.inner,
            layers=self.layers,
            heads=self.width // HEAD,
            vocabulary=VOCABULARY,
            longest=longest,
        )

    def parameters(self) -> Iterator[Parameter]:
        """The shapes of all of them, each with its block."""
        width, inner = self.width, self.inner
        for layer in range(self.layers):
            block = f"model.layers.{layer}"
            square = [(width, width)] * 4
            for shape in (*square, (inner, width), (inner, width), (width, inner)):
                yield Parameter(shape, block=block, is_hidden=True)
            yield Parameter((width,), block=block)
            yield Parameter((width,), block=block)
        for shape in ((VOCABULARY, width), (width,), (VOCABULARY, width)):
            yield Parameter(shape)

    def __str__(self) -> str:
        count = self.numel / 1e9
        return f"{count:.2f}B" if count < 10 else f"{count:.1f}B"


LADDER = tuple(Size(width, width // HEAD) for width in range(256, 8193, HEAD))
"""From 0.02 to 100 billion parameters; from 0.6 billion on by 12 % a step at most."""


def largest(ladder: Sequence[Size], fits: Callable[[Size], bool], start: int = 0) -> Size | None:
    """The last size of `ladder` that `fits`, where those before it do too; None if none does.

    It is asked of few: from the size number `start` in steps that double, until one that fits and
    one that does not are known, then halfway between these.
    """
    low, high, step = -1, len(ladder), 1
    at = start
    while high - low > 1:
        at = min(max(at, low + 1), high - 1)
        if fits(ladder[at]):
            low = at
        else:
            high = at
        if low >= 0 and high < len(ladder):
            at = (low + high) // 2
        else:
            at, step = at + (step if low == at else -step), 2 * step
    return ladder[low] if low >= 0 else None
