"""Processes that tests started and have not ended.

Each process that a test starts is recorded here. `tests/harness/guard.py` ends those that still run
when the test is over, and fails that test: not a later one, in which Python happens to find the
lost process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Running(Protocol):
    """One or several processes."""

    def is_running(self) -> bool:
        """Return whether any of its processes still runs."""

    def end(self) -> None:
        """Kill all its processes and their descendants."""


_noted: list[Running] = []


def note(one: Running) -> None:
    """Record a started process."""
    _noted.append(one)


def running() -> list[Running]:
    """Return the recorded processes that still run."""
    _noted[:] = [one for one in _noted if one.is_running()]
    return list(_noted)


def end_all(besides: Collection[Running] = ()) -> list[str]:
    """End the processes that still run except `besides`, and describe them."""
    left = [one for one in running() if not any(one is other for other in besides)]
    for one in reversed(left):
        one.end()
    return [str(one) for one in left]
