"""Handlers of what a job has produced: curves, checkpoints, predictions; and of its examples."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.app_keys import SERVICE
from zerotoolsd.http.api.document.request_schemas import MOST_SHOWN
from zerotoolsd.http.api.responses import answer

POINTS, MOST_POINTS = 1000, 5000
ROWS, MOST_ROWS = 20, 100
SHOWN = 3
LONGEST_WAIT_SECONDS = 60.0


async def curves(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}/curves?points=."""
    points = request_validation.whole(
        request.query, "points", POINTS, minimum=1, maximum=MOST_POINTS
    )
    found = await request.app[SERVICE].curves(request_validation.job_id(request), points or POINTS)
    return answer(found)


async def checkpoints(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}/checkpoints."""
    return answer(await request.app[SERVICE].checkpoints(request_validation.job_id(request)))


async def predictions(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}/predictions?step=&first=&limit=."""
    query = request.query
    step = request_validation.whole(query, "step", None, minimum=0)
    first = request_validation.whole(query, "first", 0, minimum=0) or 0
    count = request_validation.whole(query, "limit", ROWS, minimum=1, maximum=MOST_ROWS) or ROWS
    found = await request.app[SERVICE].predictions(
        request_validation.job_id(request), step, first, count
    )
    return answer(found)


async def examples(request: web.Request) -> web.Response:
    """GET /v1/jobs/{id}/examples?show=&wait=."""
    show = (
        request_validation.whole(request.query, "show", SHOWN, minimum=1, maximum=MOST_SHOWN)
        or SHOWN
    )
    wait = request_validation.seconds(request.query, "wait", maximum=LONGEST_WAIT_SECONDS)
    return answer(
        await request.app[SERVICE].examples(request_validation.job_id(request), show, wait)
    )
