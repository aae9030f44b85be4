"""The HTTP server, with a thread for each connection. Requests without the token or a valid
signature are refused. If data becomes unreadable while it is sent, the server closes the connection
early, so that the client notices.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from threading import Semaphore
from typing import Any
from urllib.parse import parse_qsl, unquote

from zerotools.core.errors import ZerotoolsError
from zerotools.ops.serving.answer_as_hub import plain_answer
from zerotools.ops.serving.answer_as_s3 import bucket_answer, error_answer
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.serving.http_answers import (
    FilePart,
    ReadRequest,
    ServedAnswer,
    ServedModel,
    of_text,
)
from zerotools.ops.serving.token_and_signature_check import (
    ALGORITHM,
    Credentials,
    SignedRequest,
    signature_refusal,
)

MOST_CONNECTIONS = 1024
"""The largest number of connections, including those of clients without the token. A connection
takes a thread, but no buffer."""
HEAD_SECONDS = 10.0
"""The time limit in seconds for receiving a request. A connection is also closed if the next
request does not arrive within this time."""
SEND_SECONDS = 60.0
TURN_SECONDS = 30.0
"""The time in seconds that a request waits for a buffer if all buffers are in use."""
SLICE = 2**16
"""The number of bytes that a client must receive within SEND_SECONDS. It allows a rate of a
kilobyte per second."""
LARGEST_BODY = 64 * 1024
PICTURE, SECRET = "picture", "key"
"""The path of the picture, and the key in its query for the secret."""
_OF_PICTURE = {
    "Content-Security-Policy": "sandbox allow-scripts; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_LATER = {"Retry-After": "1", "Content-Length": "0"}
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ModelServer(ThreadingHTTPServer):
    """Serves `model` from `source` at `address`. `say` is called with one sentence for each error.
    `draw` returns the picture of the checkpoint, an HTML page."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        model: ServedModel,
        source: ByteSource,
        credentials: Credentials,
        say: Callable[[str], None],
        draw: Callable[[], str],
    ) -> None:
        self.model, self.source, self.credentials, self.say = model, source, credentials, say
        self.draw = cache(draw)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._slots = Semaphore(MOST_CONNECTIONS)
        self.readers = Semaphore(source.readers)
        super().__init__(address, _Handler)

    @property
    def picture_url(self) -> str:
        """The URL of the picture of the checkpoint, for a browser."""
        return f"{self.url}/{PICTURE}?{SECRET}={self.credentials.picture}"

    @property
    def url(self) -> str:
        """The URL that the server listens on."""
        host, port = self.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless there are too many."""
        if not self._slots.acquire(blocking=False):
            request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a defect of zerotools. Disconnects of clients are not reported."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            self.say(f"a request was aborted because of a defect in zerotools: {error!r:.300}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = HEAD_SECONDS
    server: ModelServer

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.close_connection = True  # its body is not read
        self._answer()

    do_POST = do_DELETE = do_PATCH = do_PUT

    def version_string(self) -> str:
        return "zerotools"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self) -> None:
        self._drop_body()
        try:
            answer = self._judged()
        except (ValueError, UnicodeError):
            answer = of_text(HTTPStatus.BAD_REQUEST, "this request cannot be read\n")
        if isinstance(answer.body, FilePart) and self.command == "GET":
            if self.server.readers.acquire(timeout=TURN_SECONDS):
                try:
                    self._send_file(answer, answer.body)
                finally:
                    self.server.readers.release()
                return
            answer = ServedAnswer(HTTPStatus.SERVICE_UNAVAILABLE, _LATER)
        self._send_head(answer)
        if self.command != "HEAD" and isinstance(answer.body, bytes):
            self.wfile.write(answer.body)

    def _send_head(self, answer: ServedAnswer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send_file(self, answer: ServedAnswer, part: FilePart) -> None:
        pieces = self.server.source.read(part.file, part.wanted.begin, part.wanted.end)
        try:
            first = next(pieces, b"")
        except ZerotoolsError as problem:  # an immediate error is the response, and no data is sent
            self.server.say(str(problem))
            answer = of_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{problem}\n")
            self._send_head(answer)
            self.wfile.write(answer.body if isinstance(answer.body, bytes) else b"")
            return
        left = part.wanted.end - part.wanted.begin
        self._send_head(answer)
        self.connection.settimeout(SEND_SECONDS)
        try:
            for piece in chain([first], pieces):
                left -= len(piece)
                if not left:
                    self.server.source.check()  # before the last piece makes it whole
                self._send_slices(piece)
        except ZerotoolsError as problem:
            self._break_off(str(problem))
        except TimeoutError:
            self._break_off(f"the client received less than {SLICE} bytes in {SEND_SECONDS:g} s")
        finally:
            pieces.close()
            self.connection.settimeout(HEAD_SECONDS)

    def _send_slices(self, piece: bytes) -> None:
        view = memoryview(piece)
        for at in range(0, len(view), SLICE):
            self.wfile.write(view[at : at + SLICE])

    def _break_off(self, why: str) -> None:
        self.server.say(f"the response for {_target(self.path)[0]!r} was interrupted: {why}")
        self.close_connection = True

    def _judged(self) -> ServedAnswer:
        """Return the response to this request, or a refusal if the client is not authorized."""
        encoded, query = _target(self.path)
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = [unquote(word, errors="strict") for word in encoded.lstrip("/").split("/")]
        asked = ReadRequest(path, dict(pairs), headers)
        credentials, model = self.server.credentials, self.server.model
        authorization = headers.get("authorization")
        reads_picture = path == [PICTURE] and self.command in ("GET", "HEAD")
        if reads_picture and credentials.opens_picture(asked.query.get(SECRET)):
            return self._picture()
        is_signed = (authorization or "").startswith(ALGORITHM)
        if is_signed:
            signed = SignedRequest(self.command, encoded, pairs, headers)
            refused = signature_refusal(signed, credentials, datetime.now(UTC))
            if refused is not None:
                return error_answer(
                    refused, "the request is not signed with the keys of this server"
                )
        elif not credentials.has_token(authorization):
            answer = of_text(
                HTTPStatus.UNAUTHORIZED,
                "send the token that zerotools serve printed: Authorization: Bearer TOKEN\n",
            )
            return ServedAnswer(
                answer.status, {**answer.headers, "WWW-Authenticate": "Bearer"}, answer.body
            )
        if self.command not in ("GET", "HEAD"):
            why = "served files are read-only"
            if is_signed:
                return error_answer("MethodNotAllowed", why)
            return of_text(HTTPStatus.METHOD_NOT_ALLOWED, f"{why}\n")
        return bucket_answer(model, asked) if is_signed else plain_answer(model, asked)

    def _picture(self) -> ServedAnswer:
        try:
            answer = of_text(HTTPStatus.OK, self.server.draw(), "text/html")
        except ZerotoolsError as problem:
            return of_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{problem}\n")
        return ServedAnswer(answer.status, {**answer.headers, **_OF_PICTURE}, answer.body)

    def _drop_body(self) -> None:
        """Read the unused body of a request, because the next request on this connection begins
        after it. Close the connection if the body is long."""
        length = self.headers.get("Content-Length", "0")
        is_short = length.isdecimal() and int(length) <= LARGEST_BODY
        if not is_short or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        if not self.close_connection:
            self.rfile.read(int(length))


def _target(text: str) -> tuple[str, str]:
    """Return the path and the query of the request target `text`. A client may send the whole URL
    (RFC 9112, section 3.2.2), which is usual for a proxy."""
    path, _, query = text.partition("?")
    if path.startswith(("http://", "https://")):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path, query
