"""Divides long work on the event loop into short steps, so that other requests run in between."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from zerotools.jobs.text.mask_secrets import Steps

STEP_SECONDS = 0.01
"""Time limit, in seconds, for one piece of work. After it, other requests are served."""

Result = TypeVar("Result")


class TimeSlice:
    """Lets other requests run after each `STEP_SECONDS` of work."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self.pauses = 0

    async def pause_if_due(self) -> None:
        """Let other requests run if this work has run for `STEP_SECONDS`. Call it after each short
        step.
        """
        if time.monotonic() - self._since > STEP_SECONDS:
            await asyncio.sleep(0)
            self.pauses += 1
            self._since = time.monotonic()

    async def run(self, steps: Steps[Result]) -> Result:
        """Run all `steps`, with pauses for other requests, and return their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            await self.pause_if_due()
