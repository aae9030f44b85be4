"""Whether the full matrices are run, as `scripts/judge` does: `ZEROTOOLS_TEST_FULL=1`.

Without it a file runs what differs in its cause; which cases those are is said beside them.
Property tests have a quarter of their examples.
"""

from __future__ import annotations

import os

FULL = os.environ.get("ZEROTOOLS_TEST_FULL", "") not in ("", "0")


def examples(full: int) -> int:
    """Return how many examples a property test has that has `full` in the full matrices."""
    return full if FULL else -(-full // 4)
