"""Identifies the caller: by the kernel at the Unix socket, by a token at an address."""

from __future__ import annotations

import socket
import struct

from aiohttp import web

from zerotoolsd.http.api.app_keys import TOKENS
from zerotoolsd.interface.api_errors import Unauthorized

_CREDENTIALS = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid (unix(7)); a uid is unsigned."""


def peer_uid(request: web.Request) -> int:
    """Return the uid at the other end of the Unix socket when it was connected, or of the token.

    Raises Unauthorized.
    """
    link = None if request.transport is None else request.transport.get_extra_info("socket")
    uid = None if link is None else uid_of(link)
    return _by_token(request) if uid is None else uid


def uid_of(link: socket.socket) -> int | None:
    """Return the uid at the other end of a Unix socket when it was connected; None for other
    sockets."""
    if link.family != socket.AF_UNIX:
        return None
    packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    return int(uid)


def _by_token(request: web.Request) -> int:
    tokens = request.app.get(TOKENS)
    given = request.headers.getall("Authorization", [])
    uid = None if tokens is None or len(given) != 1 else tokens.uid_of(given[0])
    if uid is None:
        raise Unauthorized("a token is needed: send the header Authorization: Bearer TOKEN")
    return uid
