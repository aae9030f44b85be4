"""The handler of /v1/clean."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotools.jobs.states import TERMINAL
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import SERVICE
from zerotoolsd.http.api.authorize import authorized_request
from zerotoolsd.http.api.responses import json_text
from zerotoolsd.interface.api_types import CleanRequest
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.users.rights import Access

KEYS = ("jobs", "states", "older_than_seconds", "keep", "outputs", "logs_only", "dry_run")


async def clean(request: web.Request) -> web.Response:
    """Handle POST /v1/clean: remove ended jobs."""
    by = authorized_request(request)
    wanted = request_of(await request_validation.json_object(request, known=KEYS))
    of = None if by.access is Access.ALLOWED else by.uid
    # It runs to its end, even if the client is gone.
    cleaned = await asyncio.shield(request.app[SERVICE].clean(wanted, uid=by.uid, of=of))
    time_slice, parts = TimeSlice(), dict[str, list[str]](jobs=[], kept=[])
    for name, rows in (("jobs", cleaned.jobs), ("kept", cleaned.kept)):
        for each in rows:
            await time_slice.pause_if_due()
            parts[name].append(json_text(each.to_json()))
    jobs, kept = (f'"{name}": [{", ".join(texts)}]' for name, texts in parts.items())
    text = f'{{{jobs}, {kept}, "dry_run": {json_text(wanted.dry_run)}}}'
    return web.json_response(text=text)


def request_of(body: dict[str, Any]) -> CleanRequest:
    """Return the clean request in the JSON object `body`. Raises BadRequest."""
    jobs = _list(body, "jobs", int)
    wanted = CleanRequest(
        jobs=None if jobs is None else tuple(jobs),
        states=frozenset(_list(body, "states", str) or TERMINAL),
        older_than_seconds=_seconds(body.get("older_than_seconds")),
        keep=_count(body.get("keep")),
        **{name: _flag(body, name) for name in ("outputs", "logs_only", "dry_run")},
    )
    if strange := wanted.states - TERMINAL:
        raise BadRequest(
            f"states: {min(strange)!r:.40} is not one of {', '.join(sorted(TERMINAL))}"
        )
    if wanted.outputs and not wanted.jobs:
        raise BadRequest(
            "outputs = true: needs the key jobs, the list of jobs with outputs to remove"
        )
    if wanted.outputs and wanted.logs_only:
        raise BadRequest("outputs and logs_only contradict each other; leave one out")
    return wanted


def _list(body: dict[str, Any], name: str, kind: type) -> list[Any] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(each) is kind for each in value):
        raise BadRequest(f"{name}: must be null or a list of {kind.__name__} values")
    if kind is int and not all(abs(each) <= request_validation.LARGEST_INT for each in value):
        raise BadRequest(f"{name}: a number in it does not fit in 64 bits")
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    most = request_validation.LARGEST_INT  # not every longer number is a float
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]  # a number
        raise BadRequest(f"older_than_seconds: must be null or a number from 0 to {most}")
    return float(value)  # type: ignore[arg-type]  # a number


def _count(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= request_validation.LARGEST_INT:
        raise BadRequest("keep: must be null or a whole number of at least 0")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{name}: must be true or false")
    return value
