"""Answers HTTP requests for the bytes of one object, with ranges and conditions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from email.utils import formatdate
from mmap import mmap

from harness.stores.loopback import Asked


@dataclass(frozen=True)
class Content:
    """The bytes of an object. `modified` is its modification time, in seconds since 1970."""

    data: bytes | mmap
    etag: str
    modified: float
    headers: dict[str, str] = field(default_factory=dict)


def etag_of(data: bytes) -> str:
    """Return the ETag of `data`: its MD5 in quotes."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def answer_of(content: Content, asked: Asked) -> tuple[int, dict[str, str], bytes | mmap]:
    """Return the answer to a GET or HEAD: status 200, 206, 304, 412 or 416, headers and body.

    It supports one range (also of the last bytes, or without an end), and `If-Match`,
    `If-None-Match` and `If-Range` with an ETag. The answer to several ranges is the whole object,
    as with many servers.
    """
    headers = {
        "ETag": content.etag,
        "Last-Modified": formatdate(content.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
        **content.headers,
    }
    if not _matches(asked.headers.get("if-match"), content.etag, True):
        return 412, headers, b""
    if _matches(asked.headers.get("if-none-match"), content.etag, False):
        return 304, headers, b""
    size = len(content.data)
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", ""))
    if found is None or found.groups() == ("", ""):
        return 200, headers, content.data
    if asked.headers.get("if-range", content.etag) != content.etag:
        return 200, headers, content.data
    first, last = found.groups()
    if first:
        start, end = int(first), min(int(last) + 1 if last else size, size)
    else:
        start, end = max(size - int(last), 0), size
    if start >= end:
        return 416, {**headers, "Content-Range": f"bytes */{size}"}, b""
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return 206, headers, content.data[start:end]


def _matches(said: str | None, etag: str, unsaid: bool) -> bool:
    if said is None:
        return unsaid
    return said.strip() == "*" or etag in [each.strip() for each in said.split(",")]
