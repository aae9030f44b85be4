"""What a checkpoint's record says about how good it is."""

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
        """A step updated the weights; `loss` is that of its batch, before the update."""
        self._losses.append(loss)

    def evaluated(self, step: int, loss: float) -> None:
        """The weights after `step` steps have this loss on the evaluation data."""
        self._evaluated = (step, loss)

    def take(self, step: int) -> dict[str, float]:
        """The finite measurements of a checkpoint of `step`; the mean loss starts anew."""
        found = {}
        if self._losses:
            found[LOSS] = math.fsum(self._losses) / len(self._losses)
        if self._evaluated is not None and self._evaluated[0] == step:
            found[EVAL_LOSS] = self._evaluated[1]
        self._losses.clear()
        return {name: value for name, value in found.items() if math.isfinite(value)}
