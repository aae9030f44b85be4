"""The range of a job's priority.

Among waiting jobs, the job with the highest priority starts first.
"""

from __future__ import annotations

LEAST_PRIORITY, MOST_PRIORITY = -10, 10


def why_not_priority(value: object) -> str | None:
    """Return the reason why `value` is not a valid priority; None if it is valid."""
    if type(value) is int and LEAST_PRIORITY <= value <= MOST_PRIORITY:
        return None
    return f"must be a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}"
