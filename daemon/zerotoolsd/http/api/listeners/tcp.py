"""The API at an address, if `[api]` names one: with tokens, and with TLS unless it is local."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.config.daemon_config import ApiConfig
from zerotoolsd.http.api.listeners.listen import BACKLOG
from zerotoolsd.http.api.listeners.tokens import BearerTokens, read_tokens, tokens_path


@dataclass(frozen=True)
class TcpListener:
    """A socket that listens, who may come in, and TLS."""

    listening: socket.socket
    tokens: BearerTokens
    tls: ssl.SSLContext | None


def open_tcp(config: ApiConfig) -> TcpListener | None:
    """Open the listener of `[api]`; None if it has none. Raises BadRequest."""
    if config.listen is None:
        return None
    address, port = _parse(config.listen)
    tls = _tls(config)
    if tls is None and not address.is_loopback:
        raise BadRequest(
            f"api.listen = {config.listen}: others could read the tokens in transit; set "
            "api.tls_certificate and api.tls_key, or listen at 127.0.0.1 and let a proxy do "
            "TLS"
        )
    tokens = read_tokens(tokens_path(config.tokens))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = error.strerror or error
        raise BadRequest(f"api.listen = {config.listen}: cannot listen there: {why}") from None
    return TcpListener(listening, tokens, tls)


def _parse(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        number = int(port)
        if not (port.isdigit() and number < 2**16):
            raise ValueError
    except ValueError:
        raise BadRequest(
            f"api.listen = {text}: must be an address and a port, such as 127.0.0.1:8732 or "
            "[::1]:8732"
        ) from None
    return address, number


def _tls(config: ApiConfig) -> ssl.SSLContext | None:
    certificate, key = config.tls_certificate, config.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise BadRequest("api.tls_certificate and api.tls_key: set both, or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(certificate), Path(key))
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or error
        raise BadRequest(
            f"api.tls_certificate = {certificate}, api.tls_key = {key}: {why}"
        ) from None
    return context
