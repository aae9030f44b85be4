"""Where the handlers of the page find what is theirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aiohttp import web

from zerotoolsd.web.sessions import WebSession, WebSessions

SESSIONS: web.AppKey[WebSessions] = web.AppKey("sessions")
OPEN: web.AppKey[Collection[Any]] = web.AppKey("open")
"""Handlers that need no session."""

# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
SESSION: Any = "zerotoolsd.session" if _KEY is None else _KEY("zerotoolsd.session", WebSession)


def cookie_name(app: web.Application) -> str:
    """One for each daemon: browsers give the cookies of an address to all of its ports."""
    return f"zerotools-{app[SESSIONS].realm}"
