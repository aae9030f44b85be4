"""What the loop drives: one interface, and the engines behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs.record import JobRecord
from zerotoolsd.trainer.data.sequences import Example, RankBatch
from zerotoolsd.trainer.engine.decoding import Decoding
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.rank.group import WorldGroup


@dataclass(frozen=True)
class Rewards:
    """DPO's implicit rewards, `beta` times by how much the log-probability of an answer has risen
    above the reference: of the `chosen` and the `rejected` answers, and how many pairs are `right`,
    where the first is the larger. Sums over pairs, or means."""

    chosen: float = 0.0
    rejected: float = 0.0
    right: float = 0.0

    def sums(self) -> list[float]:
        """As numbers to add up over ranks."""
        return [self.chosen, self.rejected, self.right]

    def fields(self) -> dict[str, float]:
        """Means, by their names in metrics."""
        return {
            "reward_chosen": self.chosen,
            "reward_rejected": self.rejected,
            "reward_margin": self.chosen - self.rejected,
            "reward_accuracy": self.right,
        }


@dataclass(frozen=True)
class StepResult:
    """`loss` is the mean over the tokens of the global batch, or over the pairs of preferences,
    whose mean `rewards` are said; `stop` says whether a rank was asked to. `is_skipped` says that
    gradients overflowed at `loss_scale` and the weights are as they were, `skipped` counts such
    steps of the run."""

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
    """The job. Where it says epochs, the session puts one in that says steps, before the first."""

    def step(self, share: RankBatch, step: int, stop_asked: Callable[[], bool]) -> StepResult:
        """Take optimizer step `step`, counted from 0, on this rank's `share`.

        The loss is the mean over the tokens that all ranks predict, each counted once.

        `stop_asked` is called as late as can be; the outcome says whether any rank was asked.

        Raises:
            Diverged: loss or gradient is not finite; the weights are as they were.
        """

    def evaluate(self, examples: Sequence[Example]) -> LossSum:
        """The losses of this rank's `examples`; nothing that is trained or saved changes."""

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        """What the model says after each of this rank's `prompts`, at least one, without the end;
        nothing that is trained or saved changes."""

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint below `staging`.

        Raises:
            OSError, SaveFailed: it could not be written.
        """

    def describe(self, record: JobRecord) -> JobRecord:
        """`record` with what this engine knows: the optimizer, the loss scale, the layout."""

    def load(self, directory: Path, record: JobRecord) -> None:
        """Go on from the checkpoint in `directory`.

        Raises:
            BadRequest: it is of another model.
            BadCheckpoint: it cannot be read.
        """

    def load_foreign(self, start: ForeignStart) -> None:
        """Go on from a checkpoint of another program.

        Raises:
            BadRequest: this engine does not take it.
            BadFile: it is damaged.
        """


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that says how likely answers are."""

    def log_probabilities(self, examples: Sequence[Example]) -> list[float]:
        """Of each of this rank's `examples`, at least one, that of all that is to be said, without
        dropout; nothing that is trained or saved changes."""


@runtime_checkable
class CopyingEngine(Engine, Protocol):
    """An engine whose checkpoints may be written while it goes on."""

    def copy(self) -> Callable[[Path, WorldGroup], None]:
        """Copy this rank's part of a checkpoint to host memory, where the last such copy was.

        What comes back writes it as `write` would, in any thread, and meets the other ranks in the
        control group of the group that it is given.
        """
