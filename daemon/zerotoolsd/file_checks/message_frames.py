"""Messages over a stream: four bytes of length, big-endian, then as many bytes."""

from __future__ import annotations

import asyncio
import socket
import struct

_LENGTH = struct.Struct(">I")
HEAD = _LENGTH.size
LARGEST = 1 << 26


def framed(data: bytes) -> bytes:
    """Return `data` with its length before it."""
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """Return how many bytes follow `head`. Raises ConnectionError if they exceed any valid
    message."""
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST:
        raise ConnectionError(f"a message of {length} bytes")
    return int(length)


def receive(link: socket.socket) -> bytes | None:
    """Return the next message; None at the end."""
    head = _exactly(link, HEAD)
    return None if head is None else _exactly(link, length_of(head))


async def receive_from(reader: asyncio.StreamReader) -> bytes:
    """Return the next message. Raises asyncio.IncompleteReadError and ConnectionError."""
    return await reader.readexactly(length_of(await reader.readexactly(HEAD)))


def _exactly(link: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
