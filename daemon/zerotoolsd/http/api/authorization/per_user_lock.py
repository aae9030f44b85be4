"""Limits concurrent requests of one user that change something, so that they do not delay other
users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 16
"""Requests of one user at once; later ones wait in order, with their bodies unread."""


class PerUserLock:
    """The requests that are in progress, by uid."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
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
