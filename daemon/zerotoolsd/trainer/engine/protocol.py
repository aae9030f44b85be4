"""The interface that the loop drives; the engines implement it."""

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
    """DPO's implicit rewards: `beta` times the increase of an answer's log-probability above the
    reference, for the `chosen` and the `rejected` answers. `right` counts the pairs with a larger
    chosen reward. Sums over pairs, or means."""

    chosen: float = 0.0
    rejected: float = 0.0
    right: float = 0.0

    def sums(self) -> list[float]:
        """Return the numbers to add up over ranks."""
        return [self.chosen, self.rejected, self.right]

    def fields(self) -> dict[str, float]:
        """Return the means, by their names in metrics."""
        return {
            "reward_chosen": self.chosen,
            "reward_rejected": self.rejected,
            "reward_margin": self.chosen - self.rejected,
            "reward_accuracy": self.right,
        }


@dataclass(frozen=True)
class StepResult:
    """`loss` is the mean over the tokens of the global batch, or over the pairs of preferences,
    with their mean `rewards`. `stop`: a rank was asked to stop. `is_skipped`: gradients overflowed
    at `loss_scale` and the weights are unchanged; `skipped` counts such steps of the run."""

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
    """Losses of single tokens, summed, and how many they were; of preferences: of pairs, with the
    sums of their `rewards`."""

    loss: float
    tokens: int
    rewards: Rewards | None = None


class Engine(Protocol):
    """A model, its optimizer, and how the ranks share both. All ranks call each method together.

    Random numbers, the data order and the commit of a checkpoint are the loop's affair.
    """

    spec: JobSpec
    """The job. If it sets epochs, the session replaces it by one that sets steps, before the first
    step."""

    def step(self, share: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        """Take optimizer step `step`, counted from 0, on this rank's `share`.

        The loss is the mean over the tokens that all ranks predict, each counted once.

        `stop_asked` is called as late as possible; the result has whether any rank was asked.

        Raises:
            Diverged: loss or gradient is not finite; the weights are unchanged.
        """

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        """Return the losses of this rank's `examples`; trained and saved tensors do not change."""

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        """Return the model's text after each of the rank's one or more `prompts`, without the end.

        Trained and saved tensors do not change.
        """

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint below `staging`.

        Raises:
            OSError, SaveFailed: it could not be written.
        """

    def describe(self, record: JobRecord) -> JobRecord:
        """Return `record` with this engine's data: the optimizer, the loss scale, the layout."""

    def load(self, directory: Path, record: JobRecord) -> None:
        """Continue from the checkpoint in `directory`.

        Raises:
            BadRequest: it is of another model.
            BadCheckpoint: it cannot be read.
        """

    def load_foreign(self, start: ForeignStart) -> None:
        """Continue from a checkpoint of another program.

        Raises:
            BadRequest: this engine does not support it.
            BadFile: it is damaged.
        """


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that returns log-probabilities of answers."""

    def log_probabilities(self, examples: Sequence[Example]) -> list[float]:
        """Return the log-probability of the learned tokens of each of the rank's `examples` (≥ 1).

        It is computed without dropout; trained and saved tensors do not change.
        """


@runtime_checkable
class CopyingEngine(Engine, Protocol):
    """An engine with checkpoints that may be written during training."""

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        """Copy this rank's part of a checkpoint to host memory, replacing the last such copy.

        The returned function writes it as `write` would, in any thread. It meets the other ranks in
        the control group of its group argument.
        """
