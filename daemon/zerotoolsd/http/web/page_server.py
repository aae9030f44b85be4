"""Opens the port of the page when a link is requested for the first time."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.config.config_tables import WebConfig
from zerotoolsd.http.api.connection_limits import ConnectionAcceptor, UserConnections
from zerotoolsd.http.api.listening_sockets import BACKLOG
from zerotoolsd.http.web.page_app import make_page_app
from zerotoolsd.http.web.sessions import FILE, LINK_SECONDS, WebSessions
from zerotoolsd.interface.api_types import Conflict, Unavailable
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Rights

ADDRESS = "127.0.0.1"
PORTS = range(8730, 8794)
PORTS_OF_ROOT = range(954, 989)
"""Ports that are unassigned in IANA's registry. Only root can open ports below 1024 (ip(7))."""
MOST_CONNECTIONS = 512
"""The largest number of connections to the page; clients by TCP may have a quarter of them
(`UserConnections`).
"""
CLOSE_SECONDS = 2.0

log = logging.getLogger(__name__)


class WebPage:
    """The `JobPage` of a daemon with a page. The sessions are stored in `state_dir`."""

    def __init__(
        self,
        service: JobRequests,
        config: WebConfig,
        state_dir: Path,
        rights: Rights,
        people: UserDirectory,
        gate: Middleware | None = None,
    ) -> None:
        self._gate = gate
        self._service = service
        self._config = config
        self._rights = rights
        self._people = people
        self._sessions = WebSessions(state_dir / FILE, seconds_of(config.session))
        self._runner: web.AppRunner | None = None
        self._door: ConnectionAcceptor | None = None

    @property
    def port(self) -> int | None:
        """The port at which the page is served; None if the port is closed."""
        return None if self._door is None else int(self._door.listening.getsockname()[1])

    async def start(self) -> None:
        """Listen at the same port as before the daemon's restart, if sessions from that time are
        still open. If the port is taken, end these sessions.
        """
        if not self._config.enabled or not self._sessions.live():
            return
        before = self._sessions.port
        listening = None if before is None else _listen(before)
        if listening is None:
            # Another process has the port, and may have received the cookies meanwhile.
            ended = self._sessions.end_all()
            log.warning(
                "the page's port %s is taken: %s ended; type `zerotools web` for a new link",
                *(before, f"{count_text(ended, 'session')} {'has' if ended == 1 else 'have'}"),
            )
            return
        await self._open(listening)

    async def link(self, uid: int) -> dict[str, Any]:
        """Return a new link to the page for user `uid`; see `JobPage.link`."""
        if not self._config.enabled:
            raise Conflict(
                "the page is switched off on this machine: [web] enabled = false in the daemon's "
                "configuration"
            )
        if self._door is None:
            await self._open(self._find_port())
        token = self._sessions.link(uid)
        url = f"http://{ADDRESS}:{self.port}/link/{token}"
        return {"url": url, "port": self.port, "expires_seconds": LINK_SECONDS}

    def end(self, uid: int) -> int:
        """End all sessions of user `uid`; see `JobPage.end`."""
        return self._sessions.end_all(uid)

    async def close(self) -> None:
        """Stop listening at the port. The sessions are kept."""
        if self._door is not None:
            self._door.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._door is not None:
            self._sessions.save()

    async def _open(self, listening: socket.socket) -> None:
        app = make_page_app(
            *(self._service, self._sessions, self._rights, self._people), gate=self._gate
        )
        runner = web.AppRunner(app, shutdown_timeout=CLOSE_SECONDS, handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        shares = UserConnections(MOST_CONNECTIONS)
        self._runner = runner
        self._door = ConnectionAcceptor(
            listening, runner.server, most=MOST_CONNECTIONS, shares=shares
        )
        self._sessions.port = self.port
        self._sessions.save()
        log.info("the page for browsers is at http://%s:%d", ADDRESS, self.port)

    def _find_port(self) -> socket.socket:
        for port in self._ports():
            if (listening := _listen(port)) is not None:
                return listening
        wanted = self._config.port
        where = f"port {wanted}" if wanted else f"any port from {PORTS[0]} to {PORTS[-1]}"
        raise Unavailable(
            f"{where} at {ADDRESS} is in use by another program; set [web] port in the daemon's "
            "configuration"
        )

    def _ports(self) -> Iterator[int]:
        if self._config.port is not None:
            yield self._config.port
            return
        before = self._sessions.port
        if before is not None:
            yield before
        if os.geteuid() == 0:
            yield from PORTS_OF_ROOT
        first = os.geteuid() % len(PORTS)
        yield from (*PORTS[first:], *PORTS[:first])


def _listen(port: int) -> socket.socket | None:
    """Return a socket that listens at `port` of this machine; None if that fails."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL):
            return None
        raise
    return listening
