"""The files of the page: read once, the same for everybody, and requested again only if changed."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiohttp import web

ROOT = Path(__file__).with_name("files")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
SMALLEST_GZIP = 1024


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent; `tag` is its `ETag`."""

    data: bytes
    packed: bytes | None
    kind: str
    tag: str


@cache
def page_files(root: Path = ROOT) -> dict[str, PageFile]:
    """Return the files by path below `root`; files of unknown types are left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            data = path.read_bytes()
            packed = gzip.compress(data, 9, mtime=0) if len(data) >= SMALLEST_GZIP else None
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            name = path.relative_to(root).as_posix()
            found[name] = PageFile(data, packed, TYPES[path.suffix], tag)
    return found


def send(request: web.Request, name: str, *, status: int = 200) -> web.Response:
    """Return the file, compressed if the browser accepts that; 304 if it has the file already."""
    file = page_files().get(name)
    if file is None:
        raise web.HTTPNotFound
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    known = [each.strip() for each in request.headers.get("If-None-Match", "").split(",")]
    if status == 200 and file.tag in known:
        return web.Response(status=304, headers=headers)
    data = file.data
    if file.packed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        data, headers["Content-Encoding"] = file.packed, "gzip"
    return web.Response(
        status=status, body=data, content_type=file.kind, charset="utf-8", headers=headers
    )
