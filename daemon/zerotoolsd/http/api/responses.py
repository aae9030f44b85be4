"""Makes JSON responses.

Reports of jobs may contain NaN, which does not exist in JSON. It is replaced by null.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from aiohttp import web

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
