"""Opens the sockets that listen for clients: the Unix socket, and a TCP socket if `[api]` names an
address.

The Unix socket is only for the daemon's user, and lies in a separate directory. A TCP address needs
tokens, and TLS unless the address is local.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_address import Address, connect_socket
from zerotoolsd.config.config_tables import ApiConfig
from zerotoolsd.http.api.bearer_tokens import BearerTokens, read_tokens, tokens_path

BACKLOG = 1024
ANSWER_SECONDS = 1.0


def open_socket(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, with mode 0600.

    A missing directory is made with mode 0700. If the daemon at an existing socket has ended, the
    socket is replaced. Raises DaemonRefused if a daemon answers at `path`, and BadRequest if `path`
    is not a socket.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode must be right from the first moment, so that no other user can connect in
        # between.
        before = os.umask(0o177)
        try:
            with Address(path) as address:
                listening.bind(address)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:  # undone, and raised again
        listening.close()
        raise
    return listening


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadRequest(f"{path} exists and is not a socket; remove it or name another")
    try:
        connect_socket(path, ANSWER_SECONDS).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise BadRequest(
            f"the existing socket {path} cannot be checked: {error.strerror or error}"
        ) from error
    raise _in_use_error(path)


def refuse_taken(path: Path) -> None:
    """Raise DaemonRefused if a daemon answers at the socket `path`. Nothing is changed."""
    try:
        connect_socket(path, ANSWER_SECONDS).close()
    except OSError:
        return
    raise _in_use_error(path)


def _in_use_error(path: Path) -> DaemonRefused:
    return DaemonRefused(
        f"another zerotoolsd already listens at {path}; stop it, or start with another --socket",
        status=409,
        code="held",
    )


@dataclass(frozen=True)
class TcpListener:
    """A listening TCP socket, the tokens of its clients, and its TLS settings."""

    listening: socket.socket
    tokens: BearerTokens
    tls: ssl.SSLContext | None


def open_tcp(config: ApiConfig) -> TcpListener | None:
    """Open the TCP socket that `[api]` names; None if it names no address. Raises BadRequest."""
    if config.listen is None:
        return None
    address, port = _parse(config.listen)
    tls = _tls(config)
    if tls is None and not address.is_loopback:
        raise BadRequest(
            f"api.listen = {config.listen}: without TLS, others could read the tokens on the "
            "network; set api.tls_certificate and api.tls_key, or listen at 127.0.0.1 and let "
            "a proxy do TLS"
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
        raise BadRequest(
            f"api.listen = {config.listen}: cannot listen there: {why}; set an address of this "
            "machine and a free port"
        ) from None
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
