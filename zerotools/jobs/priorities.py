"""The priorities that a job may have: of two that wait, the one with the higher goes first."""

from __future__ import annotations

LEAST_PRIORITY, MOST_PRIORITY = -10, 10


def why_not_priority(value: object) -> str | None:
    """Return why `value` is not a priority, or None if it is one."""
    if type(value) is int and LEAST_PRIORITY <= value <= MOST_PRIORITY:
        return None
    return f"must be a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}"
