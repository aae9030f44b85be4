"""JSON answers. What a job reports may hold NaN, which JSON does not: it becomes null."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from aiohttp import web


def answer(tree: Any, *, status: int = 200) -> web.Response:
    """`tree` as a response."""
    return web.json_response(text=encode(tree), status=status)


def answer_unless_known(request: web.Request, tree: Any) -> web.Response:
    """`tree` with an `ETag`; 304 without it, where `If-None-Match` has that already."""
    return text_unless_known(request, encode(tree))


def text_unless_known(request: web.Request, text: str) -> web.Response:
    """Do the same as `answer_unless_known` with JSON text."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    known = (each.strip().removeprefix("W/") for each in _header(request).split(","))
    if tag in known:
        return web.Response(status=304, headers={"ETag": tag})
    return web.json_response(text=text, headers={"ETag": tag})


def _header(request: web.Request) -> str:
    return request.headers.get("If-None-Match", "")


def encode(tree: Any) -> str:
    """`tree` as JSON text."""
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
