"""The interface of an engine: what the training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs.job_record import JobRecord
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.engine.text_generation import Decoding
from zerotoolsd.trainer.rank.process_group import WorldGroup


@dataclass(frozen=True)
class Rewards:
    """Implicit rewards of DPO, summed over pairs or as means.

    A reward is `beta` times the difference between an answer's log-probability and its reference.
    `chosen` and `rejected` are the rewards of the two answers. `right` counts the pairs whose
    chosen answer has the larger reward.
    """

    chosen: float = 0.0
    rejected: float = 0.0
    right: float = 0.0

    def sums(self) -> list[float]:
        """Return the numbers that are summed over ranks."""
        return [self.chosen, self.rejected, self.right]

    def fields(self) -> dict[str, float]:
        """Return the means by their names in metrics."""
        return {
            "reward_chosen": self.chosen,
            "reward_rejected": self.rejected,
            "reward_margin": self.chosen - self.rejected,
            "reward_accuracy": self.right,
        }


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    `loss` is the mean over the tokens of the global batch. For preferences it is the mean over
    pairs, and `rewards` are their means. `stop` means that a rank was asked to stop. `is_skipped`
    means that the weights were not updated, because loss or gradients were not finite. `skipped`
    counts such steps of the run.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    stop: bool
    loss_scale: float | None = None
    is_skipped: bool = False
    skipped: int = 0
    rewards: Rewards | None = None


@dataclass(frozen=True)
class LossSum:
    """The sum of the losses of tokens, and the number of tokens. For preferences: of pairs, with
    the sums of their `rewards`."""

    loss: float
    tokens: int
    rewards: Rewards | None = None


class Engine(Protocol):
    """A model with its optimizer, shared by all ranks. All ranks call each method together.

    The loop, not the engine, handles random numbers, the order of the data, and the commit of a
    checkpoint.
    """

    spec: JobSpec
    """The job. If it sets epochs, it is replaced by one that sets steps before the first step."""

    def step(self, share: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        """Take optimizer step `step`, counted from 0, on this rank's examples `share`.

        The loss is the mean over the tokens that all ranks predict. `stop_asked` is called as late
        as possible. The result says whether any rank was asked to stop.

        Raises:
            Diverged: loss or gradient is not finite; the weights are unchanged.
        """

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        """Return the losses of this rank's `examples`. The state of the training does not
        change."""

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        """Return the text that the model generates after each of this rank's `prompts`, without the
        end token.

        There is at least one prompt. The state of the training does not change.
        """

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint below `staging`.

        Raises:
            OSError, SaveFailed: it could not be written.
        """

    def describe(self, record: JobRecord) -> JobRecord:
        """Return `record` with the values that this engine knows: optimizer, loss scale, layout."""

    def load(self, directory: Path, record: JobRecord) -> None:
        """Load the checkpoint in `directory`, to continue from it.

        Raises:
            BadRequest: the checkpoint is of another model.
            BadCheckpoint: the checkpoint cannot be read.
        """

    def load_foreign(self, start: ForeignStart) -> None:
        """Load a checkpoint of another program, to continue from it.

        Raises:
            BadRequest: this engine does not support the checkpoint.
            BadFile: the checkpoint is damaged.
        """


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can compute log-probabilities of answers."""

    def log_probabilities(self, examples: Sequence[Example]) -> list[float]:
        """Return the log-probability of the learned tokens of each of this rank's `examples`, at
        least one.

        Dropout is off. The state of the training does not change.
        """


@runtime_checkable
class CopyingEngine(Engine, Protocol):
    """An engine that can write a checkpoint while training continues."""

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        """Copy this rank's part of a checkpoint to host memory, over the last such copy.

        Returns a function that writes the copy as `write` would, in any thread. It meets the other
        ranks in the control group of its group argument.
        """
