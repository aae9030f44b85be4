"""What the cross-entropy works on, and how it is cut so that no rank holds all logits of a batch.

The logits of one part are computed, compared with the targets and let go of before the next part.
Estimate and trainer take the sizes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

CUT = ("auto", "on", "off")
LOGITS_AT_A_TIME = 1 << 26
"""The most logits of one part. With much smaller parts the head's gradient, which is added to once
for each, would take longer than the products."""


@dataclass(frozen=True)
class LossSize:
    """`rows` positions at most go through the head together, from `hidden` numbers to `vocabulary`.

    `cut` is `train.chunked_loss`: "auto" cuts where there are more logits than one part may have,
    "on" always, into parts whose logits take no more memory than the hidden states of all rows.
    """

    rows: int
    vocabulary: int
    hidden: int
    cut: str = "auto"

    def is_cut(self, rows: int | None = None) -> bool:
        """Whether the loss of so many rows (default: of the most) is computed in parts."""
        most = self.rows if rows is None else rows
        many = most * self.vocabulary > LOGITS_AT_A_TIME
        return self.cut == "on" or (self.cut == "auto" and many)

    def rows_at_a_time(self, rows: int | None = None) -> int:
        """Rows of one part, at least 1."""
        most = self.rows if rows is None else rows
        parts = ceil(most * self.vocabulary / LOGITS_AT_A_TIME)
        if self.cut == "on":
            parts = max(parts, ceil(self.vocabulary / self.hidden))
        return max(1, ceil(most / max(1, parts)))
