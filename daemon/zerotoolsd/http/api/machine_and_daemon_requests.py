"""Handlers of /v1/machine, /v1/history, /v1/shares, /v1/drain, /v1/web, /v1/health and /metrics."""

from __future__ import annotations

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import PAGE, PEOPLE, SERVICE
from zerotoolsd.http.api.authorize import authorized_request
from zerotoolsd.http.api.responses import json_response
from zerotoolsd.http.api.visible_fields import machine_for, peak_for
from zerotoolsd.interface.prometheus_text import OPENMETRICS_TYPE, TEXT_TYPE, wants_openmetrics

HISTORY_SECONDS, HISTORY_POINTS, PEAKS = 3600, 240, 100
"""Default values of the query parameters."""
LONGEST_WHY = 500
"""The largest length of a drain's reason, in characters."""


async def machine(request: web.Request) -> web.Response:
    """Handle GET /v1/machine: return the state of the machine and its GPUs."""
    return json_response(
        machine_for(await request.app[SERVICE].machine(), authorized_request(request))
    )


async def history(request: web.Request) -> web.Response:
    """Handle GET /v1/history?seconds=&points=: return the use of the machine over time."""
    request_validation.check_query(request.query, ("seconds", "points"))
    seconds = request_validation.query_integer(
        request.query,
        "seconds",
        HISTORY_SECONDS,
        minimum=1,
        maximum=request_validation.MOST_HISTORY_SECONDS,
    )
    points = request_validation.query_integer(
        request.query,
        "points",
        HISTORY_POINTS,
        minimum=1,
        maximum=request_validation.MOST_HISTORY_POINTS,
    )
    found = await request.app[SERVICE].history(seconds or HISTORY_SECONDS, points or HISTORY_POINTS)
    return json_response(found)


async def peaks(request: web.Request) -> web.Response:
    """Handle GET /v1/peaks?job=&limit=: return the peak memory of attempts."""
    request_validation.check_query(request.query, ("job", "limit"))
    job = request_validation.query_integer(request.query, "job", None, minimum=1)
    limit = (
        request_validation.query_integer(
            request.query, "limit", PEAKS, minimum=1, maximum=request_validation.MOST_PEAKS
        )
        or PEAKS
    )
    by = authorized_request(request)
    found = [peak_for(each, by) for each in request.app[SERVICE].peaks(job, limit)]
    names = await request.app[PEOPLE].names({each["uid"] for each in found} - {None})
    return json_response({"peaks": [{**each, "user": names.get(each["uid"])} for each in found]})


async def metrics(request: web.Request) -> web.Response:
    """Handle GET /metrics: return the metrics for Prometheus."""
    openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
    text = await request.app[SERVICE].metrics(openmetrics=openmetrics)
    kind = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
    return web.Response(body=text.encode("utf-8"), headers={"Content-Type": kind})


async def shares(request: web.Request) -> web.Response:
    """Handle GET /v1/shares: return each user's share of the GPUs."""
    tree = request.app[SERVICE].shares()
    names = await request.app[PEOPLE].names(each["uid"] for each in tree["users"])
    users = [{**each, "name": names[each["uid"]] or each["name"]} for each in tree["users"]]
    return json_response({**tree, "users": users})


async def health(request: web.Request) -> web.Response:
    """Handle GET /v1/health: return the state of the daemon."""
    return json_response(request.app[SERVICE].health())


async def drain(request: web.Request) -> web.Response:
    """Handle POST /v1/drain: stop starting jobs."""
    body = await request_validation.json_object(request, known=("why",))
    why = request_validation.body_text(body, "why", LONGEST_WHY)
    if why is not None and not why.isprintable():
        raise BadRequest("why: must be one line of printable characters")
    return json_response(await request.app[SERVICE].drain(why, uid=authorized_request(request).uid))


async def undrain(request: web.Request) -> web.Response:
    """Handle POST /v1/undrain: start jobs again."""
    await request_validation.no_body(request)
    return json_response(await request.app[SERVICE].undrain(uid=authorized_request(request).uid))


async def test_notices(request: web.Request) -> web.Response:
    """Handle POST /v1/notices/test: send examples of notices to destinations."""
    body = await request_validation.json_object(request, known=("places", "kinds"))
    names = request_validation.texts(body, "places")
    kinds = request_validation.texts(body, "kinds")
    return json_response({"sent": await request.app[SERVICE].test_notices(names, kinds)})


async def make_link(request: web.Request) -> web.Response:
    """Handle POST /v1/web/links: make a one-time link to the web page."""
    await request_validation.no_body(request)
    return json_response(await request.app[PAGE].link(authorized_request(request).uid), status=201)


async def end_sessions(request: web.Request) -> web.Response:
    """Handle POST /v1/web/end: end all browser sessions of the caller."""
    await request_validation.no_body(request)
    return json_response({"ended": request.app[PAGE].end(authorized_request(request).uid)})
