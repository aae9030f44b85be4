"""Handlers of /v1/events, which return the events of the queue: in one response, or as a stream."""

from __future__ import annotations

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import SERVICE
from zerotoolsd.http.api.authorize import authorized_again
from zerotoolsd.http.api.responses import json_response, json_text
from zerotoolsd.http.api.visible_fields import event_for
from zerotoolsd.interface.api_types import Event

LONGEST_WAIT_SECONDS = 60.0


async def events(request: web.Request) -> web.Response:
    """Handle GET /v1/events?since=&wait=: return the events after `since`. The next request uses
    `next` of the response as `since`.
    """
    since = request_validation.query_integer(request.query, "since", 0, minimum=0) or 0
    wait = request_validation.query_seconds(request.query, "wait", maximum=LONGEST_WAIT_SECONDS)
    found = await request.app[SERVICE].events(since, wait)
    last = found[-1].seq if found else since
    by = await authorized_again(request)
    return json_response(
        {"events": [event_for(event, by).to_json() for event in found], "next": last}
    )


LAST_ID = "Last-Event-ID"
QUIET_SECONDS = 15.0
"""Seconds without an event after which a comment is sent, because proxies close silent
connections.
"""


async def stream(request: web.Request) -> web.StreamResponse:
    """Handle GET /v1/events/stream?since=: send the events after `since` as an endless stream."""
    since = _since(request)
    answer = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    await answer.prepare(request)
    await answer.write(b": zerotoolsd\n\n")
    while True:
        found = await request.app[SERVICE].events(since, QUIET_SECONDS)
        by = await authorized_again(request)
        await answer.write(
            b"".join(event_stream_bytes(event_for(event, by)) for event in found)
            or b": still here\n\n"
        )
        since = found[-1].seq if found else since


def event_stream_bytes(event: Event) -> bytes:
    """Return one event as bytes in the format of the event stream."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json_text(event.to_json())}\n\n".encode()


def _since(request: web.Request) -> int:
    """Return the number of the last event that the client has. Only later events are sent.

    The header `Last-Event-ID` has precedence over the query, because a client that reconnects sends
    both.
    """
    if LAST_ID not in request.headers:
        return request_validation.query_integer(request.query, "since", 0, minimum=0) or 0
    try:
        return (
            request_validation.query_integer(
                {LAST_ID: request.headers[LAST_ID]}, LAST_ID, 0, minimum=0
            )
            or 0
        )
    except BadRequest as error:
        raise BadRequest(f"the header {error}") from None
