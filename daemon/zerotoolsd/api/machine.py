"""Handlers of /v1/machine, /v1/events, /v1/health and /metrics."""

from __future__ import annotations

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.api import inputs
from zerotoolsd.api.answers import answer
from zerotoolsd.api.asking.asked import asked
from zerotoolsd.api.keys import PEOPLE, SERVICE
from zerotoolsd.api.readers import event_for, machine_for
from zerotoolsd.exposing.exposition import OPENMETRICS_TYPE, TEXT_TYPE, wants_openmetrics

LONGEST_WAIT_SECONDS = 60.0
LONGEST_WHY = 500
"""Characters of what an administrator says of a drain."""


async def machine(request: web.Request) -> web.Response:
    """GET /v1/machine."""
    return answer(machine_for(await request.app[SERVICE].machine(), asked(request)))


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics."""
    openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
    text = await request.app[SERVICE].metrics(openmetrics=openmetrics)
    kind = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
    return web.Response(body=text.encode("utf-8"), headers={"Content-Type": kind})


async def shares(request: web.Request) -> web.Response:
    """GET /v1/shares."""
    tree = request.app[SERVICE].shares()
    names = await request.app[PEOPLE].names(each["uid"] for each in tree["users"])
    users = [{**each, "name": names[each["uid"]] or each["name"]} for each in tree["users"]]
    return answer({**tree, "users": users})


async def health(request: web.Request) -> web.Response:
    """GET /v1/health."""
    return answer(request.app[SERVICE].health())


async def drain(request: web.Request) -> web.Response:
    """POST /v1/drain."""
    body = await inputs.json_object(request, known=("why",))
    why = inputs.text(body, "why", LONGEST_WHY)
    if why is not None and not why.isprintable():
        raise BadRequest("why: must be one line of printable characters")
    return answer(await request.app[SERVICE].drain(why, uid=asked(request).uid))


async def undrain(request: web.Request) -> web.Response:
    """POST /v1/undrain."""
    await inputs.no_body(request)
    return answer(await request.app[SERVICE].undrain(uid=asked(request).uid))


async def events(request: web.Request) -> web.Response:
    """GET /v1/events?since=&wait= (`next` of one answer is `since` of the next)."""
    since = inputs.whole(request.query, "since", 0, minimum=0) or 0
    wait = inputs.seconds(request.query, "wait", maximum=LONGEST_WAIT_SECONDS)
    found = await request.app[SERVICE].events(since, wait)
    last = found[-1].seq if found else since
    by = asked(request)
    return answer({"events": [event_for(event, by).to_json() for event in found], "next": last})
