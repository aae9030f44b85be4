"""Handlers of /v1/web: make a link to the web page that shows the queue, and end the user's browser
sessions.
"""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import PAGE
from zerotoolsd.http.api.authorize import authorized_request
from zerotoolsd.http.api.responses import json_response


async def make_link(request: web.Request) -> web.Response:
    """Handle POST /v1/web/links: make a one-time link to the web page."""
    await request_validation.no_body(request)
    return json_response(await request.app[PAGE].link(authorized_request(request).uid), status=201)


async def end_sessions(request: web.Request) -> web.Response:
    """Handle POST /v1/web/end: end all browser sessions of the caller."""
    await request_validation.no_body(request)
    return json_response({"ended": request.app[PAGE].end(authorized_request(request).uid)})
