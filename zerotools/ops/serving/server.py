"""The HTTP server: a thread for each connection, and nobody is answered who has not shown a token
or signed. What cannot be made any more breaks the connection, so that nobody takes what came for
the whole."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Semaphore
from typing import Any
from urllib.parse import parse_qsl, unquote

from zerotools.core.errors import ZerotoolsError
from zerotools.ops.serving.access import ALGORITHM, Credentials, SignedRequest, refusal
from zerotools.ops.serving.answer import FilePart, ReadRequest, ServedAnswer, of_text
from zerotools.ops.serving.bucket_pages import bucket_answer, error
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.serving.plain_pages import plain_answer
from zerotools.ops.serving.served_model import ServedModel

MOST_CONNECTIONS = 256
IDLE_SECONDS = 60.0
LARGEST_BODY = 64 * 1024
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ModelServer(ThreadingHTTPServer):
    """Serves `model` of `source` at `address`; `say` is told what went wrong, in one sentence."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        model: ServedModel,
        source: ByteSource,
        credentials: Credentials,
        say: Callable[[str], None],
    ) -> None:
        self.model, self.source, self.credentials, self.say = model, source, credentials, say
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._slots = Semaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread, while there are not too many."""
        if not self._slots.acquire(blocking=False):
            request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """A connection, to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away in the middle is no matter to tell of."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
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
            answer = of_text(HTTPStatus.BAD_REQUEST, "this is no request that can be read\n")
        pieces: Iterator[bytes] = iter(())
        first = b""
        if isinstance(answer.body, FilePart) and self.command == "GET":
            part = answer.body
            pieces = self.server.source.read(part.file, part.wanted.begin, part.wanted.end)
            try:  # what is wrong at once is said, and nothing is sent
                first = next(pieces, b"")
            except ZerotoolsError as problem:
                self.server.say(str(problem))
                answer = of_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{problem}\n")
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self._send(answer, first, pieces)

    def _send(self, answer: ServedAnswer, first: bytes, pieces: Iterator[bytes]) -> None:
        if not isinstance(answer.body, FilePart):
            self.wfile.write(answer.body)
            return
        try:
            for following in pieces:
                self.wfile.write(first)
                first = following
            self.server.source.check()  # before the last piece makes it whole
            self.wfile.write(first)
        except ZerotoolsError as problem:
            self.server.say(f"{_target(self.path)[0]} broke off: {problem}")
            self.close_connection = True
        finally:
            if (close := getattr(pieces, "close", None)) is not None:
                close()

    def _judged(self) -> ServedAnswer:
        """What this one may be told."""
        encoded, query = _target(self.path)
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = [unquote(word, errors="strict") for word in encoded.lstrip("/").split("/")]
        asked = ReadRequest(path, dict(pairs), headers)
        credentials, model = self.server.credentials, self.server.model
        authorization = headers.get("authorization")
        is_signed = (authorization or "").startswith(ALGORITHM)
        if is_signed:
            signed = SignedRequest(self.command, encoded, pairs, headers)
            refused = refusal(signed, credentials, datetime.now(UTC))
            if refused is not None:
                return error(refused, "the request is not signed with the keys of this server")
        elif not credentials.has_token(authorization):
            answer = of_text(
                HTTPStatus.UNAUTHORIZED,
                "send the token that zerotools serve printed: Authorization: Bearer TOKEN\n",
            )
            return ServedAnswer(
                answer.status, {**answer.headers, "WWW-Authenticate": "Bearer"}, answer.body
            )
        if self.command not in ("GET", "HEAD"):
            why = "what is served can be read, and not changed"
            if is_signed:
                return error("MethodNotAllowed", why)
            return of_text(HTTPStatus.METHOD_NOT_ALLOWED, f"{why}\n")
        return bucket_answer(model, asked) if is_signed else plain_answer(model, asked)

    def _drop_body(self) -> None:
        """Read what nobody needs, so that the next request begins behind it."""
        length = self.headers.get("Content-Length", "0")
        is_short = length.isdecimal() and int(length) <= LARGEST_BODY
        if not is_short or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        if not self.close_connection:
            self.rfile.read(int(length))


def _target(text: str) -> tuple[str, str]:
    """Path and query of what is asked. Some clients send the whole URL, as to a proxy, which a
    server must take, too (RFC 9112, section 3.2.2)."""
    path, _, query = text.partition("?")
    if path.startswith(("http://", "https://")):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path, query
