"""GET /v1/events/stream: new events, as server-sent events (the WHATWG's HTML, 9.2).

A browser, or another client of such streams, that lost the connection sends `Last-Event-ID`, and
continues after it: no event is missed or repeated.
"""

from __future__ import annotations

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.app_keys import SERVICE
from zerotoolsd.http.api.authorization.authorize import asked
from zerotoolsd.http.api.responses import encode
from zerotoolsd.http.api.visible_fields import event_for
from zerotoolsd.interface.api_types import Event

LAST_ID = "Last-Event-ID"
QUIET_SECONDS = 15.0
"""After so long without an event a comment is sent, because proxies close silent connections."""


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /v1/events/stream?since=."""
    since, by = _since(request), asked(request)
    answer = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    await answer.prepare(request)
    await answer.write(b": zerotoolsd\n\n")
    while True:
        found = await request.app[SERVICE].events(since, QUIET_SECONDS)
        await answer.write(
            b"".join(framed(event_for(event, by)) for event in found) or b": still here\n\n"
        )
        since = found[-1].seq if found else since


def framed(event: Event) -> bytes:
    """Return one event in the format of the stream."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {encode(event.to_json())}\n\n".encode()


def _since(request: web.Request) -> int:
    """Return the first event number. A header has precedence: a reconnecting client sends both."""
    if LAST_ID not in request.headers:
        return request_validation.whole(request.query, "since", 0, minimum=0) or 0
    try:
        return (
            request_validation.whole({LAST_ID: request.headers[LAST_ID]}, LAST_ID, 0, minimum=0)
            or 0
        )
    except BadRequest as error:
        raise BadRequest(f"the header {error}") from None
