"""One delivery to an address: with verified TLS, and without following redirects."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import cache
from ipaddress import ip_address
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver

import zerotools
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.webhook_addresses import (
    check_address,
    place_of,
    why_refused,
)
from zerotoolsd.queue.tables.notice_outbox import Notice

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult  # a TypedDict, which aiohttp 3.9 does not have

LookUp = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> its addresses. Raises OSError."""


class NotDelivered(Exception):
    """A delivery failed; the message gives the reason."""


async def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host, by the system's resolver. Raises OSError.

    It runs in a thread that does not delay the end of the daemon.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str] | OSError) -> None:
        if found.done():
            return
        if isinstance(addresses, OSError):
            found.set_exception(addresses)
        else:
            found.set_result(addresses)

    def work() -> None:
        answer: list[str] | OSError
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except OSError as error:
            answer = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=work, name="look up a host", daemon=True).start()
    return await found


class CheckedResolver(AbstractResolver):
    """Resolves a host to allowed addresses only: the connection is made to a checked address."""

    def __init__(self, config: NotifyConfig, look_up: LookUp) -> None:
        self._config = config
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a host for aiohttp. Raises OSError."""
        found = await self._look_up(host, port)
        for address in found:
            check_address(host, address, self._config)
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for address in found
        ]

    async def close(self) -> None:
        """Do nothing: the resolver keeps no state."""


@cache
def _verifying() -> SSLContext:
    """Return the system's default TLS context.

    aiohttp's own default is not used: `ssl=True`, its current one, disabled verification in 3.9.0.
    """
    return create_default_context()


class WebhookSender:
    """Sends notices to addresses. `ssl` verifies who answers; None: as the system does."""

    def __init__(
        self, config: NotifyConfig, *, look_up: LookUp = look_up, ssl: SSLContext | None = None
    ) -> None:
        self._config = config
        self._look_up = look_up
        self._ssl = ssl

    async def send(self, notice: Notice) -> None:
        """Deliver it once. Raises NotDelivered, within `notify.timeout_seconds`."""
        if (why := why_refused(notice.target, self._config)) is not None:
            raise NotDelivered(why)
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                status = await self._post(notice)
        except TimeoutError:
            limit = self._config.timeout_seconds
            raise NotDelivered(f"no answer within {limit:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NotDelivered(_words(error)) from None
        if 300 <= status < 400:
            raise NotDelivered(f"status {status}: it leads elsewhere, which is not followed")
        if not 200 <= status < 300:
            raise NotDelivered(f"status {status}")

    async def _post(self, notice: Notice) -> int:
        _, host, _ = place_of(notice.target)
        if _is_address(host):  # aiohttp looks up names alone
            check_address(host, host, self._config)
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._config, self._look_up),
            use_dns_cache=False,
            force_close=True,
            ssl=self._ssl or _verifying(),
        )
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": notice.key,
            "User-Agent": f"zerotoolsd/{zerotools.__version__}",
        }
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            ) as session,
            session.post(
                notice.target,
                data=notice.body.encode(),
                headers=headers,
                allow_redirects=False,
            ) as response,
        ):
            return response.status  # the rest of the response is not read


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _words(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
