"""What clients send, checked once, where it enters. Everything here raises BadRequest."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotoolsd.service import NotFound

LARGEST_BODY = 1 << 20
BODY_SECONDS = 30.0
"""How long the body of a request may take to come."""
LARGEST_INT = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


async def json_object(request: web.Request, *, known: tuple[str, ...]) -> dict[str, Any]:
    """The body, which must be one JSON object with no keys but `known`."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (ConnectionError, web.RequestPayloadError) as error:
        raise BadRequest(f"the request was cut off or cannot be decoded: {error}") from error
    try:
        tree = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise BadRequest("the request is nested too deeply") from None
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise BadRequest(f"the request is not valid JSON: {error}") from None
    if not isinstance(tree, dict):
        raise BadRequest("the request must be a JSON object")
    if unknown := [name for name in tree if name not in known]:
        raise BadRequest(f"unknown key {unknown[0][:80]!r}; known keys: {', '.join(known)}")
    return tree


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return tree


def job_id(request: web.Request) -> int:
    """The `{id}` of the path; one that no job can have is NotFound."""
    text = request.match_info["id"]
    if not _WHOLE.fullmatch(text) or not 0 < int(text) <= LARGEST_INT:
        raise NotFound(f"there is no job {text[:40]!r}; job ids are whole numbers from 1 on")
    return int(text)


def whole(
    query: Mapping[str, str],
    name: str,
    default: int | None,
    *,
    minimum: int,
    maximum: int = LARGEST_INT,
) -> int | None:
    """A whole number of the query, within bounds."""
    text = query.get(name)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text) or not minimum <= int(text) <= maximum:
        bounds = (
            f"from {minimum} to {maximum}" if maximum != LARGEST_INT else f"of at least {minimum}"
        )
        raise BadRequest(f"{name}={text[:40]!r}: must be a whole number {bounds}")
    return int(text)


def seconds(query: Mapping[str, str], name: str, *, maximum: float) -> float:
    """Seconds of the query, at most `maximum`; 0 if the query has none."""
    text = query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise BadRequest(f"{name}={text[:40]!r}: must be a number of seconds")
    return min(value, maximum)


def idempotency_key(value: object) -> str | None:
    """A key of a client's choice: null, or 1 to 200 printable ASCII characters."""
    if value is None:
        return None
    if (
        isinstance(value, str)
        and 1 <= len(value) <= 200
        and value.isascii()
        and value.isprintable()
    ):
        return value
    raise BadRequest("idempotency_key: must be null or 1 to 200 printable ASCII characters")
