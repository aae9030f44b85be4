"""Who is asking: the kernel's word for it, never a header."""

from __future__ import annotations

import socket
import struct

from aiohttp import web

from zerotoolsd.service import Forbidden

_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid (unix(7))."""


def peer_uid(request: web.Request) -> int:
    """The uid at the other end of the Unix socket when it was connected."""
    link = None if request.transport is None else request.transport.get_extra_info("socket")
    if link is None or link.family != socket.AF_UNIX:
        raise Forbidden("this request needs the daemon's Unix socket, which says who is asking")
    packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    return int(uid)
