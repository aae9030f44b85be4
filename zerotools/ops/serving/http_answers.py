"""Return the files of a model as HTTP responses, with ETags, ranges and conditions (RFC 9110). The
status and headers of a response are computed before any byte of it is sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from time import time

from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.execution.resume_identity import identity_of

_TYPES = {".json": "application/json", ".txt": "text/plain; charset=utf-8"}
_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file of the model. `etag` has the quotes of HTTP, and depends on the source and on the
    options of the export."""

    name: str
    size: int
    etag: str
    content_type: str


@dataclass(frozen=True)
class ServedModel:
    """A model that is served.

    Attributes:
        name: the name of the bucket and of the repository.
        revision: the revision of all files: 40 hexadecimal digits like those of git.
        since: the start of the server, in seconds since 1970.
    """

    name: str
    files: Mapping[str, ServedFile]
    revision: str
    since: float


def served_model(conversion: Conversion, name: str) -> ServedModel:
    """Return the model that the server offers: the output of `conversion`, which is never
    written."""
    identity = identity_of(
        conversion.source, conversion.target, conversion.request, conversion.stamps
    )
    whole = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    files = {}
    for file, planned in sorted(conversion.target.files.items()):
        own = whole.copy()
        own.update(file.encode("utf-8", "surrogateescape"))
        suffix = file[file.rfind(".") :] if "." in file else ""
        content_type = _TYPES.get(suffix, _BYTES)
        files[file] = ServedFile(file, planned.size, f'"{own.hexdigest()[:32]}"', content_type)
    return ServedModel(name, files, whole.hexdigest()[:40], time())


@dataclass(frozen=True)
class ReadRequest:
    """An authorized request to read files.

    Attributes:
        path: the parts of the path between slashes, decoded.
        query: decoded pairs of name and value.
        headers: the headers, keyed by their names in lower case.
    """

    path: Sequence[str]
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class FilePart:
    """A range of a file as the body of a response. Its bytes are made while they are sent."""

    file: str
    wanted: WantedBytes


@dataclass(frozen=True)
class ServedAnswer:
    """A response. `body` is sent after the headers, which include its length and type."""

    status: HTTPStatus
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FilePart = b""


def of_text(status: HTTPStatus, text: str, content_type: str = "text/plain") -> ServedAnswer:
    """Return a response with a text as its body."""
    body = text.encode()
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Content-Length": str(len(body))}
    return ServedAnswer(status, headers, body)


def of_file(
    model: ServedModel, file: ServedFile, asked: ReadRequest, more: Mapping[str, str] | None = None
) -> ServedAnswer:
    """Return the response for a file or its requested part, with the headers `more`."""
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": file.etag,
        "Last-Modified": formatdate(model.since, usegmt=True),
        **(more or {}),
    }
    if asked.headers.get("if-match") and not etag_matches(asked.headers["if-match"], file.etag):
        return ServedAnswer(HTTPStatus.PRECONDITION_FAILED, {**headers, "Content-Length": "0"})
    if etag_matches(asked.headers.get("if-none-match"), file.etag):
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


_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class NotSatisfiable(Exception):
    """The range begins at or after the end of the file: status 416."""


@dataclass(frozen=True, slots=True)
class WantedBytes:
    """Bytes [begin, end) of a file. `is_part` is True if a range was requested."""

    begin: int
    end: int
    is_part: bool = False


def wanted_of(header: str | None, size: int) -> WantedBytes:
    """Return the bytes of a file of `size` bytes that the header `Range` requests. A header with
    several ranges, other units or invalid ranges counts as a request for the whole file, which RFC
    9110 allows (section 14.2).

    Raises:
        NotSatisfiable: no requested byte lies in the file.
    """
    match = _RANGE.fullmatch((header or "").replace(" ", ""))
    first, last = match.groups() if match else ("", "")
    if not first and not last:
        return WantedBytes(0, size)
    if not first:  # the last so many bytes
        if int(last) == 0 or size == 0:
            raise NotSatisfiable
        return WantedBytes(max(0, size - int(last)), size, is_part=True)
    begin, end = int(first), size if not last else min(size, int(last) + 1)
    if last and int(last) < begin:
        return WantedBytes(0, size)
    if begin >= size:
        raise NotSatisfiable
    return WantedBytes(begin, end, is_part=True)


def etag_matches(header: str | None, etag: str) -> bool:
    """Return whether the header `If-None-Match` or `If-Match` contains `etag`, or is `*`."""
    if header is None:
        return False
    listed = [each.strip().removeprefix("W/") for each in header.split(",")]
    return "*" in listed or etag in listed
