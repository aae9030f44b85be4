"""Which of a job's checkpoints need not be kept, of their steps alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.runs.checkpoint_dirs import step_of


@dataclass(frozen=True)
class KeepRule:
    """Keep the `last` newest checkpoints (None: all), and those with a step that `every`
    divides."""

    last: int | None = None
    every: int | None = None

    def beyond(self, listed: Sequence[Path]) -> list[Path]:
        """Return the checkpoints that may go, of `names` with the newest first."""
        if self.last is None:
            return []
        return [path for path in listed[self.last :] if not self._is_due(path)]

    def _is_due(self, path: Path) -> bool:
        step = step_of(path.name)
        return self.every is not None and step is not None and step % self.every == 0
