"""A drain by the administrator: no job starts, for maintenance or before a shutdown."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_errors import Unavailable
from zerotoolsd.interface.queue_terms import Drain
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.users.name_service import user_name


class Draining:
    """Drains the dispatcher's queue, and lets it start jobs again."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def drain(self, why: str | None, uid: int) -> None:
        """Drain the daemon; see `JobRequests`."""
        now = time.time()
        await self._set(lambda: Drain(since=now, uid=uid, why=why), uid)

    async def undrain(self, uid: int) -> None:
        """End the drain; see `JobRequests`."""
        await self._set(lambda: None, uid)

    async def _set(self, make: Callable[[], Drain | None], uid: int) -> None:
        async def change() -> None:
            drain = make()
            self._dispatcher.store.set_drain(drain, f"by {user_name(uid)}", time.time())
            self._dispatcher.placing.drained = drain
            self._dispatcher.announce()

        try:
            await when_free(change)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"that cannot be noted: writing the queue failed: {error}") from None
