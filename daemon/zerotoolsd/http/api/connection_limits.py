"""The daemon's connections: limits on their number, and on the time that a slow client may take.

If file descriptors run out, asyncio's accept loop writes 1,024 tracebacks a second into the log.
Neither asyncio nor aiohttp limits a client that connects and sends nothing, sends half a request,
or never reads the response. In this module, a connection above the limit gets a 503 with the reason
and is closed, and a connection that is too slow is closed. Refusals are logged at a limited rate
(`app.run_daemon.LogLimit`), not once per client.

For example, with 1,024 descriptors there may be 896 connections. A user's script that leaks
connections gets an eighth of them (112), and then a 503 for each further one; other users are still
served (`UserConnections`). The old connections of the script are closed when they have sent nothing
for `HEAD_SECONDS`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from aiohttp import web

from zerotoolsd.http.api.authorize import uid_of
from zerotoolsd.http.api.responses import problem_bytes, problem_response

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""Seconds from the first byte of a request, or from connecting, until the request's headers must be
complete.
"""
IDLE_SECONDS = 120.0
"""The longest time between two requests of a connection."""
READ_SECONDS = 30.0
"""Seconds for which a client may leave a response unread, without reading any byte of it."""
LINGER_SECONDS = 2.0
"""Seconds for which the rest of a refused request body is read."""
MOST_UNREAD = 4 << 20
"""The largest number of bytes that are read between the end of a response and the next request.

It is more than the size of the longest request.
"""
PARSE_SECONDS, PARSE_BYTES = 0.01, 10 << 10
"""How long the parser handles received data before other tasks run, and how many bytes at a time.

A body may come in a million chunks of one byte. PARSE_BYTES is more than a line of the head may
have (8,190): aiohttp 3.9 compares each piece of a line with that limit, not the line.
"""
MOST_UNPARSED = 1 << 20
SWEEP_SECONDS = 1.0
RESERVED = 128
"""Descriptors for the database, logs, pidfds of attempts and child processes."""
MOST = 4096
LONGEST_WHY = 300
AT_ONCE = 64
"""At most this many connections are accepted before other tasks run."""
RETRY_SECONDS = 0.1
REFUSED_AT_ONCE = 16
"""At most this many TLS connections at a time are refused with a reason. Others are closed."""
SIGNING_TURNS = 4
"""Iterations of the event loop from the start of a connection to the end of the signature of its
TLS handshake.
"""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_connection_limit() -> int:
    """Raise this process's limit of open files. Return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(8, min(MOST, (soft if soft != resource.RLIM_INFINITY else wanted) - RESERVED))


class Connection(web.RequestHandler):
    """One client connection.

    `waiting_since` is the time at which the head of a request began to arrive, or at which the
    client could have begun to send it. It is None between requests, and while a request is handled.
    Bodies are not decompressed: aiohttp would do so while the bytes arrive, before the sender is
    known. Data after a response, such as the body of a refused request, is read up to `MOST_UNREAD`
    bytes, so that the client gets the response.
    """

    __slots__ = (
        *("_came", "_feeding", "_is_full", "_left", "_unasked"),
        *("busy", "stuck_bytes", "stuck_since", "waiting_since"),
    )

    def __init__(
        self,
        server: web.Server,
        loop: asyncio.AbstractEventLoop,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the connection. `left` is called after the connection is closed."""
        self._left = left
        no_log: Any = None
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=IDLE_SECONDS,
            access_log=no_log,
            auto_decompress=False,
            lingering_time=LINGER_SECONDS,
        )
        self._unasked = 0
        self._came = bytearray()
        self._feeding: asyncio.Handle | None = None
        self._is_full = False
        self.waiting_since: float | None = loop.time()
        self.busy = False
        self.stuck_bytes = 0
        self.stuck_since = 0.0

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
        super().connection_lost(exc)
        self._left()

    def data_received(self, data: bytes) -> None:
        if self.waiting_since is None and not self.busy:
            self.waiting_since = self._loop.time()
        if not self.busy:
            self._unasked += len(data)
            if self._unasked > MOST_UNREAD and self.transport is not None:
                self.transport.abort()
                return
        if not data:  # aiohttp continues with its remaining data
            super().data_received(data)
            return
        self._came += data
        if self._feeding is None:
            self._feed()
        elif len(self._came) > MOST_UNPARSED and self.transport is not None:
            self._is_full = True
            self.transport.pause_reading()

    def _feed(self) -> None:
        """Parse received data, in slices, so that other connections are served."""
        self._feeding, until = None, self._loop.time() + PARSE_SECONDS
        while self._came:
            data = bytes(self._came[:PARSE_BYTES])
            del self._came[:PARSE_BYTES]
            super().data_received(data)
            if self._came and self._loop.time() >= until:
                self._feeding = self._loop.call_soon(self._feed)
                return
        paused = self._reading_paused or getattr(self, "_buffer_paused", False)  # by aiohttp
        if self._is_full and self.transport is not None and not paused:
            self.transport.resume_reading()
        self._is_full = False

    def begin(self) -> None:
        """Record that a request has arrived and is being handled, so it does not count as slow."""
        self.busy, self.waiting_since, self._unasked = True, None, 0

    def end(self) -> None:
        """Record that the request is handled."""
        self.busy = False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to data that is not HTTP, or exceeds its limits."""
        self.waiting_since = self._loop.time()
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        why = " ".join((message or "").split())[:LONGEST_WHY]
        answer = problem_response(
            status, "bad_request", f"this is not a request of HTTP/1.1: {why}"
        )
        answer.force_close()
        return answer

    def too_slow(self, now: float) -> str | None:
        """Return why the connection must be closed at time `now`; None if it may stay."""
        if self.busy:
            return self._unread(now)
        if self.waiting_since is not None and now - self.waiting_since > HEAD_SECONDS:
            return f"no complete request arrived within {HEAD_SECONDS:g} s"
        return self._unread(now)

    def _unread(self, now: float) -> str | None:
        transport = self.transport
        left = 0 if transport is None else transport.get_write_buffer_size()
        if left == 0 or left != self.stuck_bytes:
            self.stuck_bytes, self.stuck_since = left, now
        elif now - self.stuck_since > READ_SECONDS:
            return f"the client did not read the answer for {READ_SECONDS:g} s"
        return None


@contextmanager
def handling(request: web.Request) -> Iterator[None]:
    """Within this context, the connection of `request` does not count as slow."""
    connection = request.protocol if isinstance(request.protocol, Connection) else None
    if connection is not None:
        connection.begin()
    try:
        yield
    finally:
        if connection is not None:
            connection.end()


class _Refusal(asyncio.Protocol):
    """A refused TLS connection, which sends the reason when the client begins a request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: bytes) -> None:
        self._loop, self._answer = loop, answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = self._loop.call_later(LINGER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        answer, self._answer = self._answer, b""
        if answer:
            self._transport.write(answer)
            self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()


class ConnectionAcceptor:
    """Accepts connections to `server` at a listening socket, with at most `most` of them open."""

    def __init__(
        self,
        listening: socket.socket,
        server: web.Server,
        *,
        most: int | None = None,
        tls: ssl.SSLContext | None = None,
        shares: UserConnections | None = None,
    ) -> None:
        """Accept at most `most` connections at the socket `listening` for `server`.

        `shares` counts the connections of each user at all listening sockets of `server`.
        """
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._most = raise_connection_limit() if most is None else most
        self._shares = shares or UserConnections(self._most)
        self._tls = tls
        self._connecting: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()
        self._handshakes = asyncio.Lock()
        self._spare = _spare()
        self._listening = listening
        self._watch(listening)
        self._rush = MemoryTrimmer()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def listening(self) -> socket.socket:
        """The listening socket."""
        return self._listening

    def move_to(self, listening: socket.socket) -> None:
        """Accept connections at another socket from now on; open connections stay."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._listening = listening
        self._watch(listening)

    def close(self) -> None:
        """Stop accepting, and close connections without a request."""
        for task in (*self._connecting, *self._refusing):
            task.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._spare is not None:
            os.close(self._spare)

    def _watch(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                link, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._refuse_by_spare(error)
                return
            if len(self._server.connections) + len(self._connecting) >= self._most:
                self._refuse(link, f"there are {self._most} connections already")
                continue
            uid, why = self._shares.enter(link)
            if why is not None:
                self._refuse(link, why)
                continue
            link.setblocking(False)
            task = self._loop.create_task(self._serve(link, partial(self._shares.leave, uid)))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        self._sweep_later()

    async def _serve(self, link: socket.socket, left: Callable[[], None]) -> None:
        try:
            if self._tls is None:
                await self._connect(link, lambda: Connection(self._server, self._loop, left))
            else:
                await self._shake_hands(link, lambda: Connection(self._server, self._loop, left))
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one
            link.close()
            left()
            why = str(error) or f"nothing arrived within {HEAD_SECONDS:g} s"
            log.warning("a connection was lost as it began: %s", why)
        except asyncio.CancelledError:
            link.close()
            raise
        self._sweep_later()

    async def _connect(self, link: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        await self._loop.connect_accepted_socket(
            make,
            link,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HEAD_SECONDS,
        )

    async def _shake_hands(self, link: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Do the TLS handshake of one client.

        A signature may take some milliseconds. If a thousand clients send their first message at
        once, they are handled one after another, and other tasks run between them.
        """
        async with asyncio.timeout(HEAD_SECONDS):
            await self._first_byte(link)
            async with self._handshakes:
                task = self._loop.create_task(self._connect(link, make))
                try:
                    for _ in range(SIGNING_TURNS):
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    task.cancel()  # nothing else waits for it
                    raise
        await task

    async def _first_byte(self, link: socket.socket) -> None:
        came = asyncio.Event()
        self._loop.add_reader(link, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(link)

    def _refuse_by_spare(self, error: OSError) -> None:
        """Refuse a connection when the process has no free file descriptor.

        The connection is accepted with a descriptor that was reserved for this, gets a response
        with the reason, and is closed.
        """
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):
                link, _ = self._listening.accept()
                self._refuse(link, f"zerotoolsd has no file descriptors left ({error.strerror})")
        self._spare = _spare()
        self._loop.remove_reader(self._listening)
        self._loop.call_later(RETRY_SECONDS, self._watch_again, self._listening)

    def _watch_again(self, listening: socket.socket) -> None:
        if listening is self._listening and listening.fileno() >= 0:
            self._watch(listening)

    def _refuse(self, link: socket.socket, why: str) -> None:
        log.warning("a connection was refused: %s", why)
        answer = problem_bytes(503, "too_many_connections", f"{why}; try again later")
        if self._tls is not None:
            self._refuse_by_tls(link, answer)
            return
        with link, suppress(OSError):
            link.setblocking(False)
            link.send(answer)

    def _refuse_by_tls(self, link: socket.socket, answer: bytes) -> None:
        """Send the response `answer` to a refused TLS client after the TLS handshake.

        Before the handshake the client reads nothing. The number of such connections is limited.
        """
        if len(self._refusing) >= REFUSED_AT_ONCE:
            link.close()
            return
        link.setblocking(False)
        task = self._loop.create_task(self._send_by_tls(link, answer))
        self._refusing.add(task)
        task.add_done_callback(self._refusing.discard)

    async def _send_by_tls(self, link: socket.socket, answer: bytes) -> None:
        try:
            await self._shake_hands(link, lambda: _Refusal(self._loop, answer))
        except (OSError, TimeoutError):  # ssl.SSLError is one
            link.close()
        except asyncio.CancelledError:
            link.close()
            raise

    def _sweep_later(self) -> None:
        if self._timer is None and (self._server.connections or self._connecting):
            self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self.close_slow(self._loop.time())
        self._rush.update(len(self._server.connections))
        self._sweep_later()

    def close_slow(self, now: float) -> None:
        """Close connections that are too slow; `now` is the time of the loop's clock."""
        for each in self._server.connections:
            if isinstance(each, Connection) and each.transport is not None:
                why = each.too_slow(now)
                if why is not None:
                    log.warning("a connection was closed: %s", why)
                    each.transport.abort()


def _spare() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


RUSH = 200
"""The number of simultaneous connections from which on this is a rush."""
_libc = ctypes.CDLL(None)


def trim_memory() -> None:
    """Return freed memory of this process to the operating system.

    This takes some milliseconds for each 10,000 objects.
    """
    gc.collect()
    if hasattr(_libc, "malloc_trim"):  # of glibc alone
        _libc.malloc_trim(0)


class MemoryTrimmer:
    """Calls `end` after a rush, that is, when most of many open connections have closed.

    The interpreter and the C library keep freed memory for later use. After a rush this can be many
    megabytes, but the daemon should be small.
    """

    def __init__(self, end: Callable[[], None] = trim_memory) -> None:
        self._end = end
        self._most = 0

    def update(self, connections: int) -> None:
        """Record the current number of connections. Call `end` if a rush is over."""
        self._most = max(self._most, connections)
        if self._most >= RUSH and connections <= self._most // 8:
            self._most = 0
            self._end()


EIGHTH = 8
LEAST = 4


class UserConnections:
    """Limits the connections of each user, so that a user who leaks connections leaves some for
    others.

    Each user may have an eighth of the `most` connections. Another eighth is reserved for root and
    the daemon's user, who have no limit. The user of a TCP connection is unknown when it is made,
    so all TCP connections together may be as many as those of two users.
    """

    def __init__(self, most: int, own: int | None = None) -> None:
        self._own = os.geteuid() if own is None else own
        self._each = max(LEAST, most // EIGHTH)
        self._others = max(LEAST, most - self._each)
        self._used: Counter[int | None] = Counter()

    def enter(self, link: socket.socket) -> tuple[int | None, str | None]:
        """Count a new connection.

        Return (uid, reason). The uid is that of its user, or None if unknown. The reason says why
        the connection is refused; None if it is accepted.
        """
        uid = uid_of(link)
        if uid in (0, self._own):
            return uid, None
        each = self._each if uid is not None else 2 * self._each
        if self._used[uid] >= each:
            who = "clients by TCP have" if uid is None else f"uid {uid} has"
            return uid, f"{who} {each} connections already"
        if self._used.total() >= self._others:
            return uid, f"users have {self._others} connections already"
        self._used[uid] += 1
        return uid, None

    def leave(self, uid: int | None) -> None:
        """Stop counting a closed connection of user `uid`."""
        if uid in (0, self._own):
            return
        self._used[uid] -= 1
        if self._used[uid] <= 0:
            del self._used[uid]
