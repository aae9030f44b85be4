"""A plain HTTP server of the files in a directory, with ranges and ETags.

As a program, it prints its URL, and runs until standard input ends:

    python -m harness.stores.static DIRECTORY
"""

from __future__ import annotations

import sys
from mmap import ACCESS_READ, mmap
from pathlib import Path
from urllib.parse import unquote

from harness.stores.content import Content, answer_of
from harness.stores.loopback import Asked, Connection, LoopbackServer


class StaticServer(LoopbackServer):
    """Serves the files below `directory`, which are read at each request. It has no listings.

    Without `ranges`, it answers every GET with the whole file. Without `etags`, only the
    modification time shows that a file has changed. Both kinds of servers exist in practice.
    """

    def __init__(self, directory: Path, *, ranges: bool = True, etags: bool = True) -> None:
        super().__init__()
        self.directory, self.ranges, self.etags = directory.resolve(), ranges, etags

    def handle(self, asked: Asked, connection: Connection) -> None:
        path = (self.directory / unquote(asked.path).lstrip("/")).resolve()
        if asked.method not in ("GET", "HEAD"):
            connection.send(405, {"Allow": "GET, HEAD"}, b"")
            return
        if not path.is_relative_to(self.directory) or not path.is_file():
            connection.send(404, {}, b"")
            return
        if not self.ranges:
            asked.headers.pop("range", None)
        with path.open("rb") as file:
            info = path.stat()
            data = mmap(file.fileno(), 0, access=ACCESS_READ) if info.st_size else b""
        etag = f'"{info.st_mtime_ns:x}-{info.st_size:x}"'
        status, headers, body = answer_of(Content(data, etag, info.st_mtime), asked)
        if not self.ranges:
            del headers["Accept-Ranges"]
        if not self.etags:
            del headers["ETag"]
        connection.send(status, headers, body)
        if isinstance(data, mmap):
            data.close()


def main() -> None:
    with StaticServer(Path(sys.argv[1])) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
