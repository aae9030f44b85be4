"""The keys of the application with which the handlers of the page find their objects."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

from aiohttp import web

from zerotoolsd.http.web.sessions import WebSession, WebSessions

SESSIONS: web.AppKey[WebSessions] = web.AppKey("sessions")
OPEN: web.AppKey[Collection[Any]] = web.AppKey("open")
"""Handlers that need no session."""

MOST_COOKIES = 180
"""Browsers keep at most 180 for one address. Each is hashed before the caller is known."""

# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
SESSION: Any = "zerotoolsd.session" if _KEY is None else _KEY("zerotoolsd.session", WebSession)
"""Key of the session of the requesting page."""
COOKIES: Any = "zerotoolsd.cookies" if _KEY is None else _KEY("zerotoolsd.cookies", list)
"""The sessions of the cookies that came, which another program may have been sent."""


def cookie_name(app: web.Application, session: WebSession) -> str:
    """Return the cookie name of one daemon and session.

    Browsers send the cookies of an address to all of its ports. A link from another user must not
    replace the session of another tab.
    """
    return f"{_prefix(app)}{session.id[:8]}"


def cookies_of(request: web.Request) -> list[str]:
    """Return the values of the cookies that have our form, at most `MOST_COOKIES`.

    Other ports can set some of the same name, which hide none of these.
    """
    prefix = _prefix(request.app)
    pairs = [
        each.strip() for line in request.headers.getall("Cookie", []) for each in line.split(";")
    ]
    own = (pair.partition("=")[2] for pair in pairs if pair.startswith(prefix))
    return list(islice(own, MOST_COOKIES))


def _prefix(app: web.Application) -> str:
    return f"zerotools-{app[SESSIONS].realm}-"
