"""Handlers of /v1/web: links to the page for browsers, of the user who asks."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.api import inputs
from zerotoolsd.api.answers import answer
from zerotoolsd.api.asking.asked import asked
from zerotoolsd.api.keys import PAGE


async def make_link(request: web.Request) -> web.Response:
    """POST /v1/web/links."""
    await inputs.no_body(request)
    return answer(await request.app[PAGE].link(asked(request).uid), status=201)


async def end_sessions(request: web.Request) -> web.Response:
    """POST /v1/web/end."""
    await inputs.no_body(request)
    return answer({"ended": request.app[PAGE].end(asked(request).uid)})
