"""Serves the API at its socket. The socket is made again if somebody removes its file."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

from aiohttp import web

from zerotools.core.errors import ZerotoolsError
from zerotoolsd.http.api.connection_limits import (
    ConnectionAcceptor,
    UserConnections,
    raise_connection_limit,
)
from zerotoolsd.http.api.listening_sockets import TcpListener, open_socket

CLOSE_SECONDS = 2.0
LOOK_SECONDS = 5.0
"""Seconds between two checks that the socket still exists."""

log = logging.getLogger(__name__)


class ApiServer:
    """Serves the API `app` (`routes.make_app`) at the socket `listening`.

    `path` is the path of this socket; None if systemd keeps the socket. `tcp` is the TCP socket;
    None if the API is not served over TCP. While `state_dir` does not exist, a socket that was
    removed is not made again.
    """

    def __init__(
        self,
        app: web.Application,
        listening: socket.socket,
        path: Path | None,
        *,
        tcp: TcpListener | None = None,
        state_dir: Path | None = None,
        close_seconds: float = CLOSE_SECONDS,
        most: int | None = None,
    ) -> None:
        # A request is cancelled if its client is gone.
        self._runner = web.AppRunner(app, shutdown_timeout=close_seconds, handler_cancellation=True)
        self._tcp = tcp
        self._tcp_door: ConnectionAcceptor | None = None
        self._first = listening
        self._path = path
        self._state_dir = state_dir
        self._most = most
        self._bound: tuple[int, int] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.door: ConnectionAcceptor | None = None

    @property
    def address(self) -> object:
        """The address at which the server listens."""
        return self._path or self._first.getsockname()

    async def start(self) -> None:
        """Begin to accept connections."""
        await self._runner.setup()
        assert self._runner.server is not None
        most = raise_connection_limit() if self._most is None else self._most
        shares = UserConnections(most)
        self.door = ConnectionAcceptor(self._first, self._runner.server, most=most, shares=shares)
        if self._tcp is not None:
            found = self._tcp
            self._tcp_door = ConnectionAcceptor(
                found.listening, self._runner.server, most=most, tls=found.tls, shares=shares
            )
        if self._path is not None:
            self._bound = _identity(self._path)
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop accepting connections, and end the requests in progress."""
        if self._keeper is not None:
            self._keeper.cancel()
        for door in (self.door, self._tcp_door):
            if door is not None:
                door.close()
        await self._runner.cleanup()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.keep_socket()

    def keep_socket(self) -> None:
        """Make the socket again if it was removed or replaced; existing connections stay."""
        assert self._path is not None
        assert self.door is not None
        if self._bound is not None and _identity(self._path) == self._bound:
            return
        if self._state_dir is not None and not self._state_dir.exists():
            log.warning("%s was moved or removed; put it back", self._state_dir)
            return
        try:
            again = open_socket(self._path)
        except (OSError, ZerotoolsError) as error:
            log.warning("the socket was removed and cannot be made again now: %s", error)
            return
        self._bound = _identity(self._path)
        self.door.move_to(again)
        log.warning("another program removed the socket %s: it was made again", self._path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
