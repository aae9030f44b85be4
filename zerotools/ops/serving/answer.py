"""The response to a request, before any of it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

from zerotools.ops.serving.requests import NotSatisfiable, WantedBytes, matches, wanted_of
from zerotools.ops.serving.served_model import ServedFile, ServedModel


@dataclass(frozen=True)
class ReadRequest:
    """A request that may be answered. `path` are the decoded words between slashes, `query` the
    decoded pairs, `headers` are by their names in lower case."""

    path: Sequence[str]
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class FilePart:
    """Bytes of a file that are sent as they are made."""

    file: str
    wanted: WantedBytes


@dataclass(frozen=True)
class ServedAnswer:
    """`body` is sent after the headers; those of its length and type are among them."""

    status: HTTPStatus
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FilePart = b""


def of_text(status: HTTPStatus, text: str, content_type: str = "text/plain") -> ServedAnswer:
    """Return an answer that is known."""
    body = text.encode()
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Content-Length": str(len(body))}
    return ServedAnswer(status, headers, body)


def of_file(
    model: ServedModel, file: ServedFile, asked: ReadRequest, more: Mapping[str, str] | None = None
) -> ServedAnswer:
    """Return the response for a file, or for the requested part of it."""
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": file.etag,
        "Last-Modified": formatdate(model.since, usegmt=True),
        **(more or {}),
    }
    if asked.headers.get("if-match") and not matches(asked.headers["if-match"], file.etag):
        return ServedAnswer(HTTPStatus.PRECONDITION_FAILED, {**headers, "Content-Length": "0"})
    if matches(asked.headers.get("if-none-match"), file.etag):
        return ServedAnswer(HTTPStatus.NOT_MODIFIED, headers)
    asks = asked.headers.get("range")
    if asked.headers.get("if-range", file.etag) != file.etag:
        asks = None
    try:
        wanted = wanted_of(asks, file.size)
    except NotSatisfiable:
        refused = {**headers, "Content-Range": f"bytes */{file.size}", "Content-Length": "0"}
        return ServedAnswer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, refused)
    headers |= {
        "Content-Type": file.content_type,
        "Content-Length": str(wanted.end - wanted.begin),
    }
    if not wanted.is_part:
        return ServedAnswer(HTTPStatus.OK, headers, FilePart(file.name, wanted))
    headers["Content-Range"] = f"bytes {wanted.begin}-{wanted.end - 1}/{file.size}"
    return ServedAnswer(HTTPStatus.PARTIAL_CONTENT, headers, FilePart(file.name, wanted))
