"""What is being answered as a session ends is broken off: a stream would go on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from zerotoolsd.web.sessions import WebSession, WebSessions


@contextmanager
def broken_off_at_end(
    request: web.Request, sessions: WebSessions, session: WebSession
) -> Iterator[None]:
    """For the time of a request that reads: its connection is closed as the session ends, by its
    user, by the daemon, or because nothing else has used it for long."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left = sessions.seconds_left(session.digest)
        if left > 0:
            timer = loop.call_later(left, look)

    def hang_up() -> None:
        if request.transport is not None:
            request.transport.abort()

    sessions.watch(session.digest, hang_up)
    look()
    try:
        yield
    finally:
        sessions.unwatch(session.digest, hang_up)
        if timer is not None:
            timer.cancel()
