"""Handlers of /v1/web: links to the page for browsers, of the user who asks."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.app_keys import PAGE
from zerotoolsd.http.api.authorization.authorize import asked
from zerotoolsd.http.api.responses import answer


async def make_link(request: web.Request) -> web.Response:
    """POST /v1/web/links."""
    await request_validation.no_body(request)
    return answer(await request.app[PAGE].link(asked(request).uid), status=201)


async def end_sessions(request: web.Request) -> web.Response:
    """POST /v1/web/end."""
    await request_validation.no_body(request)
    return answer({"ended": request.app[PAGE].end(asked(request).uid)})
