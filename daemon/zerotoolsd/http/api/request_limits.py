"""Limits on the requests of one user: their rate, and how many change something at a time.

So a runaway script of one user does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PER_SECOND = 2000.0
"""Requests of one uid in a second, for long; more than a daemon on two cores can answer."""
BURST = 8000.0
MOST_USERS = 4096


@dataclass
class _Bucket:
    left: float
    filled: float


class RateLimit:
    """A bucket of `at_once` requests for each uid, filled by `per_second`."""

    def __init__(self, per_second: float = PER_SECOND, at_once: float = BURST) -> None:
        self.per_second = per_second
        self._at_once = at_once
        self._buckets: dict[int, _Bucket] = {}

    def wait_for(self, uid: int, now: float) -> float:
        """Return 0 and count the request; or return the seconds until one is allowed."""
        if len(self._buckets) > MOST_USERS:
            self._buckets.clear()
        bucket = self._buckets.setdefault(uid, _Bucket(self._at_once, now))
        gained = max(0.0, now - bucket.filled) * self.per_second
        bucket.left, bucket.filled = min(self._at_once, bucket.left + gained), now
        if bucket.left < 1:
            return (1 - bucket.left) / self.per_second
        bucket.left -= 1
        return 0.0


CONCURRENT = 16
"""Requests of one user at once; later ones wait in order, with their bodies unread."""


class PerUserLock:
    """The requests that are in progress, by uid."""

    def __init__(self, at_once: int = CONCURRENT) -> None:
        self._at_once = at_once
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._inside: dict[int, int] = {}

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        """Wait for a free slot of the user, and hold it inside the context."""
        slot = self._slots.setdefault(uid, asyncio.Semaphore(self._at_once))
        self._inside[uid] = self._inside.get(uid, 0) + 1
        try:
            async with slot:
                yield
        finally:
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid], self._slots[uid]
