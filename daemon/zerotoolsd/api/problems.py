"""Every error as `application/problem+json` (RFC 9457), with a stable code."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotoolsd.service import Conflict, Forbidden, NotFound, Unavailable

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# The first that fits: subclasses stand before their parents.
STATUS: tuple[tuple[type[ZerotoolsError], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (Forbidden, 403, "forbidden"),
    (Conflict, 409, "conflict"),
    (Unavailable, 503, "unavailable"),
    (Unsupported, 422, "unsupported"),
    (BadFile, 422, "bad_file"),
    (BadRequest, 400, "bad_request"),
)
HTTP_CODES = {404: "no_such_path", 405: "method_not_allowed", 413: "too_large"}


def problem(status: int, code: str, detail: str) -> web.Response:
    """A response that says what is wrong."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, "code": code}
    return web.Response(
        status=status, text=json.dumps(body), content_type="application/problem+json"
    )


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into a problem; the daemon goes on."""
    try:
        return await handler(request)
    except ZerotoolsError as error:
        for kind, status, code in STATUS:
            if isinstance(error, kind):
                return problem(status, code, str(error))
        return problem(500, "failed", str(error))
    except web.HTTPException as error:
        return _http_problem(request, error)
    except Exception:  # the last line of defence: one request fails, with its traceback in the log
        log.exception("a defect in zerotoolsd: %s %s failed", request.method, request.path)
        detail = "this is a defect in zerotoolsd; its log has the details"
        return problem(500, "internal", detail)


def _http_problem(request: web.Request, error: web.HTTPException) -> web.Response:
    code = HTTP_CODES.get(error.status, "http")
    detail = {
        404: f"there is nothing at {request.path[:200]!r}",
        405: f"{request.method} does not work on {request.path[:200]!r}",
        413: f"the request is longer than {request.client_max_size} bytes",
    }.get(error.status, error.reason)
    answer = problem(error.status, code, detail)
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    return answer
