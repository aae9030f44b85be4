"""How much of the work counted: steps that were run, and those that the results are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Over all jobs so far. `seconds` are those from the first start of a job to its end; `idle`
    attempts of a training found that its last step was done and saved."""

    jobs: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    idle: int = 0
    steps_run: int = 0
    steps_kept: int = 0
    kept_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, lines: Sequence[str], pace: float) -> None:
        """Count the log of a job with steps of `pace` seconds."""
        run = [int(line.split()[1]) for line in lines if line.startswith("step ")]
        saved = [int(line.split()[1]) for line in lines if line.startswith("saved ")]
        kept = max(saved, default=0)
        self.attempts += sum(line.startswith("began") for line in lines)
        self.steps_run += len(run)
        self.steps_kept += kept
        self.kept_seconds += kept * pace

    @property
    def kept(self) -> float:
        """The share of the steps that were run."""
        return self.steps_kept / self.steps_run if self.steps_run else 1.0

    @property
    def effective(self) -> float:
        """The share of the time from each job's first start to its end."""
        return self.kept_seconds / self.seconds if self.seconds else 1.0
