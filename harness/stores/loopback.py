"""An HTTP/1.1 server in threads of this process, so that the caller can read its state.

Each connection has a thread. All threads have ended when the context of the server ends.
"""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from mmap import mmap
from socketserver import TCPServer, ThreadingMixIn
from threading import Event, Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qsl

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """A request.

    `path` is unchanged, but without the query. The names of `headers` are in lower case.
    """

    method: str
    path: str
    query_string: str
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        """The decoded fields of the query. If a name occurs several times, its last value is
        used.
        """
        return dict(parse_qsl(self.query_string, keep_blank_values=True))

    @property
    def target(self) -> str:
        """The path and the query, unchanged."""
        return f"{self.path}?{self.query_string}" if self.query_string else self.path


class LoopbackServer(ABC):
    """A server on a port of loopback that the kernel chooses. It is a context manager.

    `stopping` is set when the context ends, so that handlers that wait can end.
    """

    def __init__(self) -> None:
        self.stopping = Event()
        self._listener = _Listener(self)
        self._thread = Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        """The port of the server. It is known before the context begins and after it ends."""
        return int(self._listener.server_address[1])

    @property
    def url(self) -> str:
        """The URL of the server, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @abstractmethod
    def handle(self, asked: Asked, connection: Connection) -> None:
        """Answer the request `asked` with `connection.send`, `cut` or `reset`."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.shutdown()
        self._listener.end()
        self._thread.join()


class Connection(BaseHTTPRequestHandler):
    """A connection to a client. The server's `handle` answers its requests one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def send(
        self, status: int, headers: dict[str, str], body: bytes | mmap, length: int | None = None
    ) -> None:
        """Send a complete answer.

        `length` is the header Content-Length, if it is not the length of the body.
        """
        self.send_head(status, headers, len(body) if length is None else length)
        if self.command != "HEAD":
            with memoryview(body) as view:
                self.wfile.write(view)

    def send_head(self, status: int, headers: dict[str, str], length: int) -> None:
        """Send the status line and the headers of an answer with a body of `length` bytes."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.flush()

    def cut(self) -> None:
        """Close the connection with a FIN, also in the middle of an answer."""
        self.close_connection = True

    def reset(self) -> None:
        """Close the connection with a reset (RST), as a machine does that has lost its state."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.reset_ones.add(self.connection)

    def handle_one_request(self) -> None:
        # If a client disconnects in the middle of a request or an answer, this is no error here.
        with suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def finish(self) -> None:
        with suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing, because the handlers record the requests."""

    def _take(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.owner.handle(Asked(self.command, path, query, headers, self._body()), self)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _take

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(parts)


class _Listener(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        self.reset_ones: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        super().__init__((HOST, 0), Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            was_reset = request in self.reset_ones
            self.reset_ones.discard(request)
        if was_reset:
            self.close_request(request)  # without an orderly shutdown
        else:
            super().shutdown_request(request)

    def end(self) -> None:
        """Close all connections, and wait for their threads."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self.server_close()
