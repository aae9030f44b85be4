"""Makes JSON responses, and for each error a response of type `application/problem+json` (RFC 9457)
with a stable error code.

Reports of jobs may contain NaN, which does not exist in JSON. It is replaced by null.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.jobs.client.daemon_compatibility import API_VERSION
from zerotoolsd.interface.api_types import Conflict, Forbidden, NotFound, Unauthorized, Unavailable
from zerotoolsd.interface.event_loop_slice import TimeSlice


def json_response(tree: Any, *, status: int = 200) -> web.Response:
    """Return `tree` as a JSON response."""
    return web.json_response(text=json_text(tree), status=status)


def answer_unless_known(request: web.Request, tree: Any) -> web.Response:
    """Return `tree` as a JSON response with an `ETag`.

    If the request has this tag in `If-None-Match`, return status 304 without a body.
    """
    text = json_text(tree)
    tag = _tag(hashlib.sha256(text.encode()).hexdigest())
    if _is_known(request, tag):
        return web.Response(status=304, headers={"ETag": tag})
    return web.json_response(text=text, headers={"ETag": tag})


async def parts_unless_known(request: web.Request, parts: Sequence[str]) -> web.Response:
    """Return a response as `answer_unless_known` does, from JSON text in several parts.

    Other requests are served while the text is hashed.
    """
    time_slice, data, digest = TimeSlice(), list[bytes](), hashlib.sha256()
    for part in parts:
        await time_slice.pause_if_due()
        data.append(part.encode())
        digest.update(data[-1])
    tag = _tag(digest.hexdigest())
    if _is_known(request, tag):
        return web.Response(status=304, headers={"ETag": tag})
    body, kind = b"".join(data), "application/json"
    return web.Response(body=body, content_type=kind, charset="utf-8", headers={"ETag": tag})


def _tag(digest: str) -> str:
    return f'"{digest[:32]}"'


def _is_known(request: web.Request, tag: str) -> bool:
    return tag in (each.strip().removeprefix("W/") for each in _header(request).split(","))


def _header(request: web.Request) -> str:
    return request.headers.get("If-None-Match", "")


def json_text(tree: Any) -> str:
    """Return `tree` as JSON text."""
    try:
        return json.dumps(tree, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(tree), allow_nan=False)


def _finite(tree: Any) -> Any:
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return tree


log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# The first that fits: subclasses stand before their parents.
STATUS: tuple[tuple[type[ZerotoolsError], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (Unauthorized, 401, "unauthorized"),
    (Forbidden, 403, "forbidden"),
    (Conflict, 409, "conflict"),
    (Unavailable, 503, "unavailable"),
    (Unsupported, 422, "unsupported"),
    (BadFile, 422, "bad_file"),
    (BadRequest, 400, "bad_request"),
)
CONTENT_TYPE = "application/problem+json"
_VERSION = re.compile("/v([0-9]{1,9})(?:/|$)", re.ASCII)
HTTP_CODES = {
    404: "no_such_path",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "encoded",
}


def problem_response(status: int, code: str, detail: str) -> web.Response:
    """Return a response that describes an error."""
    return web.Response(status=status, text=_body(status, code, detail), content_type=CONTENT_TYPE)


def problem_bytes(status: int, code: str, detail: str) -> bytes:
    """Return the bytes of a whole HTTP response that reports this error and closes the connection.

    Use it where no request is handled, for example when a connection is refused.
    """
    body = _body(status, code, detail).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _body(status: int, code: str, detail: str) -> str:
    tree = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, "code": code}
    return json.dumps(tree)


_NO_MEMORY = _body(
    503, "unavailable", "zerotoolsd has no memory left for this request; send it again later"
).encode()
"""The response when memory is exhausted.

It is made in advance, because then there is no memory to make it.
"""


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert an exception of the handler into a problem response, so that the daemon continues."""
    try:
        return await handler(request)
    except ZerotoolsError as error:
        for kind, status, code in STATUS:
            if isinstance(error, kind):
                return _with_challenge(problem_response(status, code, str(error)))
        return problem_response(500, "failed", str(error))
    except web.HTTPException as error:
        return _http_problem(request, error)
    except MemoryError:
        log.error("no memory is left for %s %s", request.method, request.path)
        return web.Response(status=503, body=_NO_MEMORY, content_type=CONTENT_TYPE)
    except Exception:  # the last line of defence: one request fails, with its traceback in the log
        log.exception("a defect in zerotoolsd: %s %s failed", request.method, request.path)
        detail = "this is a defect in zerotoolsd; its log has the details"
        return problem_response(500, "internal", detail)


def _with_challenge(answer: web.Response) -> web.Response:
    if answer.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _http_problem(request: web.Request, error: web.HTTPException) -> web.Response:
    code = HTTP_CODES.get(error.status, "http")
    version = _VERSION.match(request.path)
    if error.status == 404 and version and int(version[1]) != API_VERSION:
        why = f"this daemon speaks version {API_VERSION} of the API, not version {version[1]}"
        return problem_response(404, "no_such_version", why)
    detail = {
        404: f"there is nothing at {request.path[:200]!r}",
        408: "the body of the request did not come in time",
        405: f"{request.method} does not work on {request.path[:200]!r}",
        415: "the body of the request is compressed: send it without Content-Encoding",
        413: f"the request is longer than {request.client_max_size} bytes",
    }.get(error.status, error.reason)
    answer = problem_response(error.status, code, detail)
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    if error.status in (408, 415):
        answer.force_close()
    return answer
