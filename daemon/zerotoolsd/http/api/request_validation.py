"""Checks the data that clients send when it enters the daemon. Data is checked only here.

All functions raise BadRequest.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aiohttp import HttpVersion11, web

from zerotools.core.errors import BadRequest
from zerotoolsd.interface.api_types import NotFound
from zerotoolsd.interface.event_loop_slice import TimeSlice

LARGEST_BODY = 1 << 20
MOST_VALUES, LONGEST_TEXT = 50_000, 131_072
"""Limits of one request: the number of values, and the length of a text.

The kernel accepts no longer text as an argument or a variable.
"""
MOST_HISTORY_SECONDS, MOST_HISTORY_POINTS, MOST_PEAKS = 366 * 86400, 1000, 1000
BODY_SECONDS = 30.0
"""Seconds within which the body of a request must arrive."""
LARGEST_INT = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,300}(?:\.[0-9]{0,300})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def routes_of(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """Return the routes with `ask_for_body` as the handler of the header `Expect`.

    Some clients send this header, and then wait before they send a body.
    """
    return [
        web.route(each.method, each.path, each.handler, **each.kwargs, expect_handler=ask_for_body)
        for each in routes
    ]


async def ask_for_body(request: web.Request) -> None:
    """Answer `Expect: 100-continue`, and ignore any other expectation (RFC 9110, 10.1.1).

    aiohttp would refuse other expectations with status 417, before the gate and without a problem
    response.
    """
    if request.version == HttpVersion11 and request.headers["Expect"].lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer itself


def refuse_encoded(request: web.Request) -> None:
    """Raise HTTPUnsupportedMediaType if the body is compressed.

    After decompression the body might be a thousand times as long as the bytes that were sent.
    """
    if any(each.strip().lower() not in ("", "identity") for each in _encodings(request)):
        raise web.HTTPUnsupportedMediaType


def _encodings(request: web.Request) -> list[str]:
    return request.headers.getall("Content-Encoding", [])


async def json_object(request: web.Request, *, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the request body, which must be one JSON object with no other keys than `known`."""
    return await _known_object(await _body(request), known)


async def _known_object(raw: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    is_large = len(raw) > LONGEST_TEXT
    _refuse_many(raw)
    if is_large:  # each of these takes some time
        await asyncio.sleep(0)
    tree = _object(raw)
    if is_large:
        await asyncio.sleep(0)
        if _may_be_long(raw):
            await _refuse_long(tree)
        await asyncio.sleep(0)
    refuse_unknown(tree, known, "key")
    return tree


async def no_body(request: web.Request) -> None:
    """Check that the request has no body, or an empty object."""
    await body_if_any(request, known=())


async def body_if_any(request: web.Request, *, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the request body as `json_object` does; an empty dict if there is no body."""
    raw = await _body(request)
    return await _known_object(raw, known) if raw else {}


def body_flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return the value of `name` in the request body, which must be true or false."""
    if not isinstance(value := body.get(name, default), bool):
        raise BadRequest(f"{name}: must be true or false")
    return value


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (ConnectionError, web.RequestPayloadError) as error:
        raise BadRequest(f"the request was cut off or cannot be decoded: {error}") from error


def _object(raw: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise BadRequest("the request is nested too deeply") from None
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise BadRequest(f"the request is not valid JSON: {error}") from None
    if not isinstance(tree, dict):
        raise BadRequest("the request must be a JSON object")
    return tree


def _refuse_many(raw: bytes) -> None:
    """Raise BadRequest if the JSON text `raw` has too many values.

    Parsing a million small values takes a second.
    """
    if _signs(raw) > MOST_VALUES and (count := _signs(_STRING.sub(b"", raw))) > MOST_VALUES:
        raise BadRequest(
            f"the request has about {count:,} values, but may have at most {MOST_VALUES:,}; "
            "send several requests, or write long values into a file and pass its path"
        )


def _signs(raw: bytes) -> int:
    return sum(map(raw.count, (b",", b"[", b"{")))


def _may_be_long(raw: bytes) -> bool:
    """Return False if no string in the JSON text `raw` can be longer than `LONGEST_TEXT`.

    The distance between two quotes is an upper bound of the length of a string.
    """
    return max(map(len, raw.replace(b'\\"', b"__").split(b'"'))) > LONGEST_TEXT


async def _refuse_long(tree: Any) -> None:
    left, time_slice = [tree], TimeSlice()
    while left:
        await time_slice.pause_if_due()
        value = left.pop()
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise BadRequest(
                f"a text of the request has {len(value):,} characters, but may have at most "
                f"{LONGEST_TEXT:,}; write it to a file and pass its path"
            )


def refuse_unknown(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise BadRequest for the first of `names` that is not in `known`. The message suggests the
    most similar known name.

    `what` is the word for the names in the message, such as "key".
    """
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name[:80], known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        listed = f"known keys: {', '.join(known)}" if known else "this request takes none"
        raise BadRequest(f"unknown {what} {name[:80]!r}{meant or '; ' + listed}")


def check_query(query: Mapping[str, str], known: Collection[str]) -> None:
    """Check that the query has only `known` keys, each once.

    If a key had two values, it would be unclear which value counts.
    """
    counts = Counter(name for name, _ in query.items())
    refuse_unknown(counts, known, "key of the query")
    for name, count in counts.items():
        if count > 1:
            raise BadRequest(f"{name}: is given {count} times in the query; give it once")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return tree


def job_id(request: web.Request) -> int:
    """Return the job number `{id}` in the path.

    Raises NotFound for a number that no job can have.
    """
    text = request.match_info["id"]
    if not _WHOLE.fullmatch(text) or not 0 < int(text) <= LARGEST_INT:
        raise NotFound(f"job {text[:40]!r} does not exist; job ids are whole numbers from 1 on")
    return int(text)


def query_integer(
    query: Mapping[str, str],
    name: str,
    default: int | None,
    *,
    minimum: int,
    maximum: int = LARGEST_INT,
) -> int | None:
    """Return the query's integer `name`, from `minimum` to `maximum`; `default` if missing."""
    text = query.get(name)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text) or not minimum <= int(text) <= maximum:
        bounds = (
            f"from {minimum} to {maximum}" if maximum != LARGEST_INT else f"of at least {minimum}"
        )
        raise BadRequest(f"{name}={text[:40]!r}: must be a whole number {bounds}")
    return int(text)


def query_seconds(query: Mapping[str, str], name: str, *, maximum: float) -> float:
    """Return the seconds in the query parameter `name`, at most `maximum`; 0 if missing."""
    text = query.get(name, "0")
    value = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= value < math.inf:
        raise BadRequest(f"{name}={text[:40]!r}: must be a number of seconds")
    return min(value, maximum)


def body_text(body: Mapping[str, Any], name: str, longest: int = 4096) -> str | None:
    """Return the text of the body's key `name`; None if missing."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest or not _is_plain(value):
        raise BadRequest(f"{name}: must be null or 1 to {longest} characters of text")
    return value


def texts(body: Mapping[str, Any], name: str) -> list[str]:
    """Return the list of texts under the key `name` of the request body; empty if missing."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadRequest(f"{name}: must be null or a list of texts")
    return value


def _is_plain(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def body_time(body: Mapping[str, Any], name: str) -> float | None:
    """Return the time of the body's key `name` in seconds since the epoch; None if missing."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < LARGEST_INT:
        raise BadRequest(f"{name}: must be null or a time in seconds since 1970")
    return float(value)


def idempotency_key(value: object) -> str | None:
    """Return the checked idempotency key: null, or 1 to 200 printable ASCII characters."""
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
