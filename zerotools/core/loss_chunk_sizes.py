"""The number of rows for which the cross-entropy loss is computed at once, so that no rank holds
all logits.

The logits of one group of rows are computed, compared with the targets and freed before the next
group. The estimate and the trainer both use these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

CUT = ("auto", "on", "off")
LOGITS_AT_A_TIME = 1 << 26
"""The largest number of logits that are computed at a time, for one part of the rows.

Each part adds to the head's gradient once. In much smaller parts these additions would take longer
than the matrix products.
"""
ROWS_AT_LEAST = 128
"""The smallest number of rows in one part of the loss. A part has fewer rows if the batch has
fewer, or if their logits would exceed the limit above.

For each part, the head is read and its gradient is added to. This takes as long as the products of
about 100 rows. For a vocabulary much larger than the hidden size, parts without this minimum took
three times as long as the undivided loss (benchmarks/results/loss.md).
"""


@dataclass(frozen=True)
class LossSize:
    """The size of a loss computation: at most `rows` positions, with `hidden` inputs and
    `vocabulary` outputs of the model's output layer.

    `cut` is the value of `train.chunked_loss`. With "auto", the rows are computed in parts only if
    they have more than `LOGITS_AT_A_TIME` logits, which is the limit for a part. With "on", parts
    are smaller: their logits need about the memory of the hidden states of all rows. But parts do
    not become smaller than `at_least` rows.
    """

    rows: int
    vocabulary: int
    hidden: int
    cut: str = "auto"
    at_least: int = ROWS_AT_LEAST

    def is_cut(self, rows: int | None = None) -> bool:
        """Return whether the loss of `rows` rows (None: `self.rows`) is computed in parts."""
        most = self.rows if rows is None else rows
        many = most * self.vocabulary > LOGITS_AT_A_TIME
        return self.cut == "on" or (self.cut == "auto" and many)

    def rows_at_a_time(self, rows: int | None = None) -> int:
        """Return the number of rows in one part of the loss, at least 1."""
        most = self.rows if rows is None else rows
        rows = ceil(most / max(1, ceil(most * self.vocabulary / LOGITS_AT_A_TIME)))
        if self.cut == "on":
            rows = min(rows, max(self.at_least, ceil(most * self.hidden / self.vocabulary)))
        return max(1, rows)
