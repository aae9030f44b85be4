"""The gate before every handler. It rejects a request on a closed connection, above the rate limit,
or without authorization.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.authorize import decide, peer_uid, turn_of
from zerotoolsd.http.api.connection_limits import Connection
from zerotoolsd.http.api.error_responses import problem_response
from zerotoolsd.http.api.openapi.openapi_document import query_keys
from zerotoolsd.http.api.request_limits import RateLimit
from zerotoolsd.interface.api_types import Unauthorized

WRONG_TOKENS = 10.0
"""The largest number of requests without a valid token that are checked per second."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def gate_middleware(rate: RateLimit) -> Middleware:
    """Return the middleware that checks every request, with the rate limit `rate`."""
    strangers = RateLimit(WRONG_TOKENS, WRONG_TOKENS)

    @web.middleware
    async def pass_gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol if isinstance(request.protocol, Connection) else None
        if connection is not None:
            connection.begin()
        try:
            if request.transport is None or request.transport.is_closing():
                return web.Response(status=499)  # no client reads it
            request_validation.refuse_encoded(request)
            now = asyncio.get_running_loop().time()
            try:
                uid = peer_uid(request)
            except Unauthorized:
                if (wait := strangers.wait_for(0, now)) > 0:
                    return _too_often(strangers, wait)
                raise
            if (wait := rate.wait_for(uid, now)) > 0:
                return _too_often(rate, wait)
            resource = request.match_info.route.resource
            if request.query_string and resource is not None:
                known = query_keys(resource.canonical, request.method)
                request_validation.check_query(request.query, known)
            await decide(request, uid)
            async with turn_of(request):
                return await handler(request)
        finally:
            if connection is not None:
                connection.end()

    return pass_gate


def _too_often(rate: RateLimit, wait: float) -> web.Response:
    why = f"more than {rate.per_second:g} requests a second; try again in {wait:.3f} s"
    answer = problem_response(429, "rate_limited", why)
    answer.headers["Retry-After"] = str(math.ceil(wait))
    return answer
