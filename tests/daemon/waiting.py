"""Waiting for a condition, with a deadline that grows with the load: the only way in which these
tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harness.patience import Deadline

T = TypeVar("T")
PAUSE_SECONDS = 0.005


def wait_for(condition: Callable[[], T], what: str, deadline: float = 20.0) -> T:
    """The first true value of `condition()`. Raises AssertionError naming `what`."""
    end = Deadline(deadline)
    while True:
        if value := condition():
            return value
        assert not end.has_passed(), f"waited {end.waited:.0f} s for {what}"
        time.sleep(PAUSE_SECONDS)


async def wait_async(condition: Callable[[], Awaitable[T]], what: str, deadline: float = 20.0) -> T:
    """`wait_for`, in an event loop."""
    end = Deadline(deadline)
    while True:
        if value := await condition():
            return value
        assert not end.has_passed(), f"waited {end.waited:.0f} s for {what}"
        await asyncio.sleep(PAUSE_SECONDS)
