"""The interface of an engine: what the training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.training_record import JobRecord
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart
from zerotoolsd.trainer.engine.text_generation import Decoding
from zerotoolsd.trainer.rank.process_group import WorldGroup


@dataclass(frozen=True)
class Rewards:
    """Implicit rewards of DPO, as sums over preference pairs or as averages.

    A reward is `beta` times (the log-probability of an answer - its reference log-probability).

    Attributes:
        chosen, rejected: the rewards of the two answers.
        right: the number (in averages: the fraction) of pairs in which the chosen answer has the
            larger reward.
    """

    chosen: float = 0.0
    rejected: float = 0.0
    right: float = 0.0

    def sums(self) -> list[float]:
        """Return [chosen, rejected, right], the numbers that are summed over ranks."""
        return [self.chosen, self.rejected, self.right]

    def fields(self) -> dict[str, float]:
        """Return the averages, keyed by their names in the metrics, such as `reward_margin`."""
        return {
            "reward_chosen": self.chosen,
            "reward_rejected": self.rejected,
            "reward_margin": self.chosen - self.rejected,
            "reward_accuracy": self.right,
        }


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    `loss` is the average over the tokens of the global batch. For preferences, `loss` and `rewards`
    are averages over the pairs. `stop` is True if any rank was asked to stop. `is_skipped` is True
    if the weights were not updated, because the loss or gradients were not finite. `skipped` is the
    number of skipped steps of the run.
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
    """The sum of the losses of all tokens, and the number of tokens.

    For preferences, `loss` is the sum over pairs and `tokens` the number of pairs, and `rewards`
    has the sums of the rewards.
    """

    loss: float
    tokens: int
    rewards: Rewards | None = None


class Engine(Protocol):
    """The interface of an engine: a model with its optimizer, shared by all ranks.

    All ranks call each method together. The training loop, not the engine, handles random numbers,
    the order of the data, and the commit of a checkpoint.
    """

    spec: JobSpec
    """The job. If the job file sets epochs, this job has the computed number of steps instead."""

    def step(self, batch: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        """Do optimizer step `step`, counted from 0. This rank computes the examples of `batch`.

        The loss is the average over the tokens that all ranks predict. `stop_asked` returns whether
        this rank was asked to stop. It is called as late as possible in the step.

        Raises:
            Diverged: the loss or a gradient is not finite, and the step may not be skipped.
                DeepSpeed may have updated the weights before.
        """

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        """Return the summed loss of this rank's `examples`.

        The state of the training does not change.
        """

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        """Generate text after each of this rank's `prompts`; there is at least one prompt.

        Returns the ids of each generated text, without the end token. The state of the training
        does not change.
        """

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint into the directory `staging`.

        Raises:
            OSError, SaveFailed: the part could not be written.
        """

    def describe(self, record: JobRecord) -> JobRecord:
        """Return `record`, completed with the engine's own values: optimizer, loss scale,
        layout.
        """

    def load(self, directory: Path, record: JobRecord) -> None:
        """Load the state from the checkpoint in `directory`, to continue from it.

        `record` is the record of this checkpoint.

        Raises:
            BadRequest: the checkpoint belongs to another model.
            BadCheckpoint: the checkpoint cannot be read.
        """

    def load_foreign(self, start: ForeignStart) -> None:
        """Load the state from the checkpoint of another program, to continue from it.

        Raises:
            BadRequest: this engine does not support the checkpoint.
            BadFile: the checkpoint is damaged.
        """


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can also compute log-probabilities of answers."""

    def log_probabilities(self, examples: Sequence[Example]) -> list[float]:
        """For each of this rank's `examples`, return the log-probability of its learned tokens.

        There is at least one example. Dropout is off. The state of the training does not change.
        """


@runtime_checkable
class CopyingEngine(Engine, Protocol):
    """An engine that can also write a checkpoint while training continues."""

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        """Copy this rank's part of a checkpoint to host memory, in place of the previous copy.

        Returns a function (staging directory, group) that writes the copy as `write` would. Any
        thread may call it. It communicates with the other ranks only through the control group of
        `group`.
        """
