"""The time of the start, by phase."""

from __future__ import annotations

import time


class Phases:
    """Consecutive phases since `started`, a reading of `time.monotonic`."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._last = started
        self._seconds: dict[str, float] = {}

    def done(self, name: str) -> None:
        """Record that a phase has ended and the next one begins."""
        now = time.monotonic()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._seconds.items())
        return f"{self._last - self._started:.2f} s: {parts}"
