"""Sends one notice by HTTP, to a webhook of a job or to a configured destination.

TLS is verified, and redirects are not followed. For jobs, only allowed hosts are accepted. The host
name is checked before the lookup. The address is checked again when the connection is made, because
a name server could return one address for the check and another for the connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

import zerotools
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig, service_of
from zerotoolsd.monitoring.notifications.message_formats import (
    ANSWERS_IN_BODY,
    REQUESTS,
    NotDelivered,
    NoticeText,
    ServiceRequest,
    check_answer,
    masked_answer,
    secrets_in,
)
from zerotoolsd.queue.tables.notice_outbox import Notice

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult  # a TypedDict, which aiohttp 3.9 does not have

LookUp = Callable[[str, int], Awaitable[list[str]]]
"""A function of a host and a port that returns the addresses of the host. Raises OSError."""


async def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of `host` from the system's resolver. Raises OSError.

    The lookup runs in a thread that does not delay the end of the daemon.
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
    """Resolves host names for aiohttp. A host is refused if any of its addresses is not allowed.

    Without `config`, all addresses are allowed.
    """

    def __init__(self, config: NotifyConfig | None, look_up: LookUp) -> None:
        self._config = config
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a host for aiohttp. Raises OSError."""
        found = await self._look_up(host, port)
        if self._config is not None:
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
    """Return the system's default TLS context, which verifies certificates.

    The default of aiohttp, `ssl=True`, is not used, because it disabled verification in aiohttp
    3.9.0.
    """
    return create_default_context()


_LARGEST_ANSWER = 16 * 1024
_BODY_SECONDS = 2.0
"""Seconds to wait for the body of an answer that already failed by its status."""


class WebhookSender:
    """Sends notices to webhooks of jobs, and to configured destinations.

    `ssl` has the TLS settings that verify the server; None: the system's settings.
    """

    def __init__(
        self, config: NotifyConfig, *, look_up: LookUp = look_up, ssl: SSLContext | None = None
    ) -> None:
        self._config = config
        self._look_up = look_up
        self._ssl = ssl

    async def send(self, notice: Notice) -> str:
        """Send the notice to its address once, and return the answer in a few words.

        Raises NotDelivered, within `notify.timeout_seconds`.
        """
        if (why := why_refused(notice.target, self._config)) is not None:
            raise NotDelivered(why)
        _, host, _ = host_of(notice.target)
        try:
            if _is_address(host):  # aiohttp looks up names alone
                check_address(host, host, self._config)
        except ForbiddenAddress as error:
            raise NotDelivered(_words(error)) from None
        resolver = CheckedResolver(self._config, self._look_up)
        return await self._try(notice, service_of(notice.target), notice.target, None, resolver)

    async def send_to(self, destination: NoticeDestination, notice: Notice) -> str:
        """Send the notice to `destination` once, as `send` does.

        The administrator has configured the address, so it may be in any network.
        """
        resolver = CheckedResolver(None, self._look_up)
        return await self._try(
            notice, destination.kind, destination.url or "", destination.secret, resolver
        )

    async def _try(
        self,
        notice: Notice,
        service: str,
        url: str,
        secret: str | None,
        resolver: CheckedResolver,
    ) -> str:
        if (make := REQUESTS.get(service)) is None:
            request = ServiceRequest(url=url, tree=json.loads(notice.body))
        else:
            request = make(NoticeText.of(notice), url, secret, time.time())
        hidden = [*secrets_in(url), *filter(None, (secret,))]
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                status, headers, body = await self._post(request, service, notice.key, resolver)
        except TimeoutError:
            limit = self._config.timeout_seconds
            raise NotDelivered(f"no answer within {limit:g} s") from None
        except aiohttp.InvalidURL:  # its text is the address
            raise NotDelivered("its address is not valid") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # may cite the answer
            raise NotDelivered(masked_answer(_words(error), hidden)) from None
        return check_answer(service, status, headers, body, hidden)

    async def _post(
        self, request: ServiceRequest, service: str, key: str, resolver: CheckedResolver
    ) -> tuple[int, Mapping[str, str], bytes]:
        connector = aiohttp.TCPConnector(
            resolver=resolver,
            use_dns_cache=False,
            force_close=True,
            ssl=self._ssl or _verifying(),
        )
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Idempotency-Key": key,
            "User-Agent": f"zerotoolsd/{zerotools.__version__}",
            **request.headers,
        }
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,  # a small answer could fill the memory
            ) as session,
            session.post(
                request.url,
                data=json.dumps(request.tree).encode(),
                headers=headers,
                allow_redirects=False,
            ) as response,
        ):
            return response.status, response.headers, await _body(response, service)


async def _body(response: aiohttp.ClientResponse, service: str) -> bytes:
    """Return the beginning of the body of an answer, if it is needed. The rest is not read."""
    if service in ANSWERS_IN_BODY:
        return await _beginning(response)
    if response.ok:
        return b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await _beginning(response)
    except (TimeoutError, aiohttp.ClientError):
        return b""


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    found = b""
    async for part in response.content.iter_any():
        found += part
        if len(found) >= _LARGEST_ANSWER:
            break
    return found[:_LARGEST_ANSWER]


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


PORTS = {"https": 443, "http": 80}


class ForbiddenAddress(OSError):
    """The administrator does not allow notices to be sent to this address."""


def host_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of `url`, which may lack the scheme as in `notify.allow`."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    host = (parts.hostname or "").rstrip(".")
    return parts.scheme, host, parts.port or PORTS.get(parts.scheme, 0)


def why_refused(url: str, config: NotifyConfig) -> str | None:
    """Return the reason why notices may not be sent to the host of `url`. Return None if the host
    is allowed; `check_address` must then check its address.
    """
    places = [host_of(entry) for entry in config.allow]
    if config.webhook is not None:
        places.append(host_of(config.webhook))
    scheme, host, port = host_of(url)
    if (scheme, host, port) in places:
        return None
    if not places:
        return "this daemon sends to no host; its administrator can allow hosts in notify.allow"
    shown = ", ".join(f"{'http://' * (each[0] == 'http')}{each[1]}:{each[2]}" for each in places)
    return f"this daemon does not send to {scheme}://{host}:{port}, only to {shown}"


def check_address(host: str, address: str, config: NotifyConfig) -> None:
    """Raise ForbiddenAddress if the address of `host` is not allowed."""
    found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if (found.is_global and not found.is_multicast) or _is_named(found, config.allow):
        return
    if any(found in ip_network(network) for network in config.networks):
        return
    raise ForbiddenAddress(
        f"{host} has the address {found}, which is neither public nor in notify.networks"
    )


def _is_named(found: IPv4Address | IPv6Address, allow: Sequence[str]) -> bool:
    """Return whether the address `found` itself is an entry of the administrator's list `allow`."""
    return str(found) in {host_of(entry)[1] for entry in allow}


def why_job_refused(notify: NotifySpec, config: NotifyConfig) -> str | None:
    """Return the reason why a job with this table `[notify]` is refused; None if it is accepted."""
    if notify.webhook is not None and (why := why_refused(notify.webhook, config)) is not None:
        return f"notify.webhook: {why}"
    if notify.command and not config.commands:
        return "notify.command: the configuration of this daemon does not allow commands"
    return None
