"""Requests of one user that change something: what is done for one user delays no other's, and what
one user sends at a time has its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 16
"""Of one user; later ones wait in their order, with their bodies unread."""


class RequestTurns:
    """Those that are being answered, by uid."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._inside: dict[int, int] = {}

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        """For the time of one request."""
        slot = self._slots.setdefault(uid, asyncio.Semaphore(self._at_once))
        self._inside[uid] = self._inside.get(uid, 0) + 1
        try:
            async with slot:
                yield
        finally:
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid], self._slots[uid]
