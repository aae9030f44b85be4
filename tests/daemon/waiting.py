"""Waiting for a condition, with a deadline that grows with the load: the only way in which these
tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from harness.patience import Deadline

T = TypeVar("T")
FIRST_SECONDS, LONGEST_SECONDS = 0.004, 0.08
"""Pauses between two looks: a look may ask a daemon, and a long wait is not for many of them."""


def pauses() -> Iterator[float]:
    """Each a bit longer than the one before."""
    pause = FIRST_SECONDS
    while True:
        yield pause
        pause = min(1.5 * pause, LONGEST_SECONDS)


def wait_for(condition: Callable[[], T], what: str, deadline: float = 20.0) -> T:
    """The first true value of `condition()`. Raises AssertionError naming `what`."""
    end = Deadline(deadline)
    for pause in pauses():
        if value := condition():
            break
        assert not end.has_passed(), f"waited {end.waited:.0f} s for {what}"
        time.sleep(pause)
    return value


async def wait_async(condition: Callable[[], Awaitable[T]], what: str, deadline: float = 20.0) -> T:
    """`wait_for`, in an event loop."""
    end = Deadline(deadline)
    for pause in pauses():
        if value := await condition():
            break
        assert not end.has_passed(), f"waited {end.waited:.0f} s for {what}"
        await asyncio.sleep(pause)
    return value
