"""Another program that listens at a port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Recorder(BaseHTTPRequestHandler):
    """Answers everything, and keeps what came."""

    page = b"<!doctype html><title>elsewhere</title><body>elsewhere"
    came: list[dict[str, str]]

    def do_GET(self) -> None:
        self.came.append(dict(self.headers.items()))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def elsewhere(port: int = 0) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """It answers inside the block: its port, and what it was sent."""
    came: list[dict[str, str]] = []
    handler = type("Recorder", (Recorder,), {"came": came})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], came
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
