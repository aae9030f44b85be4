"""The measurements in a checkpoint's record that show how good it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LOSS, EVAL_LOSS = "loss", "eval_loss"


@dataclass
class CheckpointMetrics:
    """Losses since the last checkpoint, and the newest evaluation."""

    _losses: list[float] = field(default_factory=list)
    _evaluated: tuple[int, float] | None = None

    def stepped(self, loss: float) -> None:
        """Record a step that updated the weights; `loss` is that of its batch, before the
        update."""
        self._losses.append(loss)

    def evaluated(self, step: int, loss: float) -> None:
        """Record the evaluation loss of the weights after `step` steps."""
        self._evaluated = (step, loss)

    def take(self, step: int) -> dict[str, float]:
        """Return the finite measurements for a checkpoint of `step`, and reset the mean loss."""
        found = {}
        if self._losses:
            found[LOSS] = math.fsum(self._losses) / len(self._losses)
        if self._evaluated is not None and self._evaluated[0] == step:
            found[EVAL_LOSS] = self._evaluated[1]
        self._losses.clear()
        return {name: value for name, value in found.items() if math.isfinite(value)}
