"""Closes connections when a session ends: a stream would continue forever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from zerotoolsd.http.web.sessions import WebSession, WebSessions


@contextmanager
def broken_off_at_end(
    request: web.Request, sessions: WebSessions, session: WebSession
) -> Iterator[None]:
    """Close the connection of a read request when its session ends.

    A session ends by its user, by the daemon, or because it was not used for long by other
    requests.
    """
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
