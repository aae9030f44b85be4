"""The size of the cross-entropy's parts, cut so that no rank holds all logits of a batch.

The logits of one part are computed, compared with the targets and freed before the next part.
Estimate and trainer take the sizes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

CUT = ("auto", "on", "off")
LOGITS_AT_A_TIME = 1 << 26
"""The most logits of one part. With much smaller parts the head's gradient, which is added to once
for each, would take longer than the products."""
ROWS_AT_LEAST = 128
"""The fewest rows of one part, if the batch has as many and their logits are within the limit
above.

A part reads the head, and adds to its gradient, in as much time as the products of about 100 rows
take. If the vocabulary is much wider than the model, parts without this bound took three times as
long as no parts (benchmarks/results/loss.md).
"""


@dataclass(frozen=True)
class LossSize:
    """At most `rows` positions go through the head together, from `hidden` numbers to `vocabulary`.

    `cut` is `train.chunked_loss`. "auto" cuts if there are more logits than one part may have. "on"
    always cuts, into parts with at least `at_least` rows, or with logits that take no more memory
    than the hidden states of all rows.
    """

    rows: int
    vocabulary: int
    hidden: int
    cut: str = "auto"
    at_least: int = ROWS_AT_LEAST

    def is_cut(self, rows: int | None = None) -> bool:
        """Return whether the loss of `rows` rows (default: the maximum) is computed in parts."""
        most = self.rows if rows is None else rows
        many = most * self.vocabulary > LOGITS_AT_A_TIME
        return self.cut == "on" or (self.cut == "auto" and many)

    def rows_at_a_time(self, rows: int | None = None) -> int:
        """Return rows of one part, at least 1."""
        most = self.rows if rows is None else rows
        rows = ceil(most / max(1, ceil(most * self.vocabulary / LOGITS_AT_A_TIME)))
        if self.cut == "on":
            rows = min(rows, max(self.at_least, ceil(most * self.hidden / self.vocabulary)))
        return max(1, rows)
