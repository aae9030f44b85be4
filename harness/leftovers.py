"""Records the processes that tests start, to find processes that are not ended.

`tests/harness/guard.py` kills the recorded processes that still run when a test is over, and fails
this test. Otherwise a later test would fail, in which Python happens to find the lost process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Running(Protocol):
    """One or several started processes."""

    def is_running(self) -> bool:
        """Return whether any of the processes still runs."""

    def end(self) -> None:
        """Kill the processes and all their descendants."""


_noted: list[Running] = []


def note(one: Running) -> None:
    """Record a started process."""
    _noted.append(one)


def running() -> list[Running]:
    """Return the recorded processes that still run."""
    _noted[:] = [one for one in _noted if one.is_running()]
    return list(_noted)


def end_all(besides: Collection[Running] = ()) -> list[str]:
    """End the recorded processes that still run, except `besides`, and return their
    descriptions.
    """
    left = [one for one in running() if not any(one is other for other in besides)]
    for one in reversed(left):
        one.end()
    return [str(one) for one in left]
