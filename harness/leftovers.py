"""What tests started and have not ended.

Whatever a test starts is noted here. `tests/conftest.py` ends what is still running when the test
is over, and says so there: not in an innocent test, where Python later finds the lost process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Running(Protocol):
    """A process, or several."""

    def is_running(self) -> bool:
        """Whether any of it still runs."""

    def end(self) -> None:
        """Kill it and all that it started; nothing is left of it."""


_noted: list[Running] = []


def note(one: Running) -> None:
    """Something was started."""
    _noted.append(one)


def running() -> list[Running]:
    """What is noted and still runs."""
    _noted[:] = [one for one in _noted if one.is_running()]
    return list(_noted)


def end_all(besides: Collection[Running] = ()) -> list[str]:
    """End what still runs, and describe it; `besides` stays."""
    left = [one for one in running() if not any(one is other for other in besides)]
    for one in reversed(left):
        one.end()
    return [str(one) for one in left]
