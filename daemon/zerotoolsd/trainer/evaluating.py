"""Loss and perplexity on what is not trained on: the same at every number of ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.data.sequences import Example, Pool
from zerotoolsd.trainer.enginetype import Engine
from zerotoolsd.trainer.group import Group

LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Evaluated:
    """`loss` is the mean over all `tokens` of all `sequences`."""

    loss: float
    sequences: int
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float | None:
        """e to the power of the loss; None where that is no finite number."""
        is_small = math.isfinite(self.loss) and self.loss < LARGEST_EXPONENT
        return math.exp(self.loss) if is_small else None


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated on and when; rank r does every `world_size`th sequence from r on."""

    pool: Pool
    every: int | None
    batch_size: int
    sequences: int

    def is_due(self, step: int, steps: int) -> bool:
        """Whether step `step` of `steps`, counted from 1, is one after which to evaluate."""
        return step == steps or (self.every is not None and step % self.every == 0)

    def run(self, engine: Engine, group: Group, alive: Callable[[], None]) -> Evaluated:
        """Evaluate; all ranks call it together. `alive` is called after each forward pass."""
        started = time.monotonic()
        loss, tokens = 0.0, 0
        for examples in self._batches(group.rank.number, group.rank.world_size):
            summed = engine.evaluate(examples)
            loss += summed.loss
            tokens += summed.tokens
            alive()
        total, count = group.total([loss, float(tokens)])
        seconds = time.monotonic() - started
        return Evaluated(total / max(1.0, count), self.sequences, int(count), seconds)

    def _batches(self, rank: int, world_size: int) -> Iterator[list[Example]]:
        """The batches of a rank: equally many on each, as every forward pass takes them all."""
        numbers = range(rank, self.sequences, world_size)
        for first in range(0, math.ceil(self.sequences / world_size), self.batch_size):
            chosen = numbers[first : first + self.batch_size]
            # A rank that has nothing left takes part without being counted.
            yield [self.pool.example(n) for n in chosen] or [self.pool.example(0).silent()]


def make_evaluation(spec: JobSpec, pool: Pool | None) -> Evaluation | None:
    """The evaluation that a job asks for."""
    if pool is None:
        return None
    size = spec.eval.batch_size or spec.train.micro_batch_size or 1
    most = spec.eval.max_sequences
    count = len(pool) if most is None else min(most, len(pool))
    return Evaluation(pool, spec.eval.every, size, count)
