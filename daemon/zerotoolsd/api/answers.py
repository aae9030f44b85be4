"""JSON answers. What a job reports may hold NaN, which JSON does not: it becomes null."""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web


def answer(tree: Any, *, status: int = 200) -> web.Response:
    """`tree` as a response."""
    return web.json_response(text=encode(tree), status=status)


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
