"""Handlers of /v1/jobs/{id}/array: the same for all jobs of the array that a job is of."""

from __future__ import annotations

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.app_keys import SERVICE
from zerotoolsd.http.api.authorization.authorize import asked
from zerotoolsd.http.api.jobs import list_text, priority_of, retry_wish
from zerotoolsd.http.api.responses import encode
from zerotoolsd.interface.api_types import ARRAY_OPERATIONS, ArrayWish


async def change(request: web.Request) -> web.Response:
    """POST /v1/jobs/{id}/array."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("do", "priority", "lose_steps"))
    by = asked(request)
    found = await request.app[SERVICE].change_array(job_id, _wish(body), uid=by.uid)
    kept = encode([{"job": job, "why": why} for job, why in found.kept])
    text = await list_text(request, found.jobs)
    return web.json_response(text=f'{{"jobs": {text}, "kept": {kept}}}')


def _wish(body: dict[str, object]) -> ArrayWish:
    do, lose_steps = body.get("do"), request_validation.flag(body, "lose_steps")
    if do not in ARRAY_OPERATIONS:
        raise BadRequest(f"do: must be one of {', '.join(ARRAY_OPERATIONS)}")
    if lose_steps and do not in ("hold", "pause"):
        raise BadRequest("lose_steps: is for hold alone")
    priority = priority_of(body)
    if (priority is None) is (do == "priority"):
        raise BadRequest("priority: is for do = priority, which needs it")
    return ArrayWish(do=str(do), priority=priority, lose_steps=lose_steps)


async def retry(request: web.Request) -> web.Response:
    """POST /v1/jobs/{id}/array/retry."""
    job_id = request_validation.job_id(request)
    body = await request_validation.json_object(request, known=("output_dir", "from_start"))
    output_dir, from_start = retry_wish(body)
    views = await request.app[SERVICE].retry_array(
        job_id, uid=asked(request).uid, output_dir=output_dir, from_start=from_start
    )
    return web.json_response(text=f'{{"jobs": {await list_text(request, views)}}}', status=201)
