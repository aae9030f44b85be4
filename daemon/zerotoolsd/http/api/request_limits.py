"""Limits on the requests of one user: how many per second, and how many at the same time.

Because of these limits, a user's script that sends too many requests does not delay other users.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PER_SECOND = 2000.0
"""The largest number of requests of one uid per second in the long run.

A daemon on two cores cannot answer so many.
"""
BURST = 8000.0
MOST_USERS = 4096


@dataclass
class _Bucket:
    left: float
    filled: float


class RateLimit:
    """Limits the requests of each uid with a token bucket.

    A uid can send `at_once` requests in a burst, and `per_second` requests per second in the long
    run.
    """

    def __init__(self, per_second: float = PER_SECOND, at_once: float = BURST) -> None:
        self.per_second = per_second
        self._at_once = at_once
        self._buckets: dict[int, _Bucket] = {}

    def wait_for(self, uid: int, now: float) -> float:
        """Count a request of user `uid` and return 0 if it is allowed now. Otherwise return the
        seconds until the next request is allowed.
        """
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
"""The largest number of one user's requests that are handled at the same time.

Later ones wait in order, with their bodies unread.
"""


class ConcurrencyLimit:
    """Limits the number of requests of each uid that are handled at the same time."""

    def __init__(self, at_once: int = CONCURRENT) -> None:
        self._at_once = at_once
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._inside: dict[int, int] = {}

    @asynccontextmanager
    async def slot(self, uid: int) -> AsyncIterator[None]:
        """Return a context in which one request of the user `uid` is handled. At most `at_once`
        requests of a user are inside such a context at a time; further requests wait.
        """
        free = self._slots.setdefault(uid, asyncio.Semaphore(self._at_once))
        self._inside[uid] = self._inside.get(uid, 0) + 1
        try:
            async with free:
                yield
        finally:
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid], self._slots[uid]
