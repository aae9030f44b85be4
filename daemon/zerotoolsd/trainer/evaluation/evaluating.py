"""Loss and perplexity on held-out data, and the scores of generated text: the same at every number
of ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.examplestore import Preference
from zerotoolsd.trainer.data.sequences import Example, ExamplePool
from zerotoolsd.trainer.engine.protocol import Engine, Rewards
from zerotoolsd.trainer.evaluation.predictions import Predicted, Predictions, make_predictions
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.group import WorldGroup

LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Evaluated:
    """`loss` is the mean over all `tokens` of all `sequences`, or over pairs of answers, with the
    means of their `rewards`; `predicted` is the result of generation, if the job uses it."""

    loss: float
    sequences: int
    tokens: int
    seconds: float
    predicted: Predicted | None = None
    rewards: Rewards | None = None

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss; None if that is not a finite number, or for a loss of
        preferences, which is not a likelihood of text."""
        if self.rewards is not None:
            return None
        is_small = math.isfinite(self.loss) and self.loss < LARGEST_EXPONENT
        return math.exp(self.loss) if is_small else None


@dataclass(frozen=True)
class Evaluation:
    """The evaluation data and schedule; share s is every `shares`th sequence from s on."""

    pool: ExamplePool
    every: int | None
    batch_size: int
    sequences: int
    predictions: Predictions | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for people."""
        note = self.predictions.note() if self.predictions is not None else None
        return (note,) if note else ()

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether to evaluate after step `step` of `steps`, counted from 1."""
        return step == steps or (self.every is not None and step % self.every == 0)

    def run(
        self,
        engine: Engine,
        group: WorldGroup,
        step: int,
        alive: Callable[[], None],
        stop_asked: Callable[[], bool],
    ) -> Evaluated:
        """Evaluate after step `step`; all ranks call it together.

        `alive` is called after each batch. Generation, which takes long, is skipped if `stop_asked`
        returns True on any rank.
        """
        started = time.monotonic()
        loss, tokens, rewards = 0.0, 0, [0.0] * 3
        of_pairs = isinstance(self.pool.example(0), Preference)
        for examples in self._batches(group.rank.share, group.rank.shares):
            summed = engine.evaluate(examples)
            loss += summed.loss
            tokens += summed.tokens
            if summed.rewards is not None:
                rewards = [a + b for a, b in zip(rewards, summed.rewards.sums(), strict=True)]
            alive()
        alike = group.rank.tensor_ranks
        totals = group.total([loss, float(tokens), *rewards])
        total, count, *sums = (each / alike for each in totals)
        seconds = time.monotonic() - started
        predicted = None
        if self.predictions is not None:
            predicted = self.predictions.run(engine, group, step, alive, stop_asked)
        mean = total / max(1.0, count)
        means = Rewards(*(each / max(1.0, count) for each in sums)) if of_pairs else None
        return Evaluated(mean, self.sequences, int(count), seconds, predicted, means)

    def _batches(self, share: int, shares: int) -> Iterator[list[Example]]:
        """Yield the batches of a share: equally many on each, because every forward pass needs all
        ranks."""
        numbers = range(share, self.sequences, shares)
        for first in range(0, math.ceil(self.sequences / shares), self.batch_size):
            chosen = numbers[first : first + self.batch_size]
            # A rank without remaining examples takes part without being counted.
            yield [self.pool.example(n) for n in chosen] or [self.pool.example(0).silent()]


def make_evaluation(
    spec: JobSpec, pool: ExamplePool | None, meta_model: MetaModel, group: WorldGroup
) -> Evaluation | None:
    """Return the evaluation of a job.

    Raises:
        ZerotoolsError: this model, at this length or on this machine, cannot generate; on every
            rank.
    """
    if pool is None:
        return None
    size = spec.eval.batch_size or spec.train.micro_batch_size or 1
    most = spec.eval.max_sequences
    count = len(pool) if most is None else min(most, len(pool))
    predictions = make_predictions(spec, pool, meta_model, group, count, size)
    return Evaluation(pool, spec.eval.every, size, count, predictions)
