"""The hosts and addresses that a webhook may reach. Pure.

A name is checked before the lookup, and its address when the connection is made: a name server
could return one address for the check and another one for the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from zerotools.jobs.tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NotifyConfig

PORTS = {"https": 443, "http": 80}


class ForbiddenAddress(OSError):
    """The administrator does not allow it."""


def place_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address; an entry of `notify.allow` may lack its
    scheme."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    host = (parts.hostname or "").rstrip(".")
    return parts.scheme, host, parts.port or PORTS.get(parts.scheme, 0)


def why_refused(url: str, config: NotifyConfig) -> str | None:
    """Return why nothing is sent to `url`; None if its host may be looked up."""
    places = [place_of(entry) for entry in config.allow]
    if config.webhook is not None:
        places.append(place_of(config.webhook))
    scheme, host, port = place_of(url)
    if (scheme, host, port) in places:
        return None
    if not places:
        return "this daemon sends to no host; its administrator can list some in notify.allow"
    shown = ", ".join(f"{'http://' * (each[0] == 'http')}{each[1]}:{each[2]}" for each in places)
    return f"this daemon does not send to {scheme}://{host}:{port}, only to {shown}"


def check_address(host: str, address: str, config: NotifyConfig) -> None:
    """Raise ForbiddenAddress if `host` resolves to an address that is not allowed."""
    found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if (found.is_global and not found.is_multicast) or _is_named(found, config.allow):
        return
    if any(found in ip_network(network) for network in config.networks):
        return
    raise ForbiddenAddress(
        f"{host} leads to {found}, which is not a public address and not in notify.networks"
    )


def _is_named(found: IPv4Address | IPv6Address, allow: Sequence[str]) -> bool:
    """Return whether the administrator has listed the address itself."""
    return str(found) in {place_of(entry)[1] for entry in allow}


def why_job_refused(notify: NotifySpec, config: NotifyConfig) -> str | None:
    """Return why a job with this `[notify]` is refused; None if it is accepted."""
    if notify.webhook is not None and (why := why_refused(notify.webhook, config)) is not None:
        return f"notify.webhook: {why}"
    if notify.command and not config.commands:
        return "notify.command: the configuration of this daemon does not allow commands"
    return None
