"""Progress datagrams to the supervisor of an attempt: one JSON object of at most 4 KiB each.

The sender never waits for the receiver, and does not fail if the receiver fails. Standard library
only, and no newer syntax than that of Python 3.9: programs of users send with this too.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

LARGEST_DATAGRAM = 4096
ROOM_SECONDS = 1.0
"""The longest time in seconds that `send` waits for space if the datagram must not be lost."""


class Sender:
    """The sending end of the socket on which a program reports to its supervisor. Without an
    address or a receiver, it sends nothing.
    """

    def __init__(self, address: str | None) -> None:
        self._socket = _connect(Path(address)) if address else None

    @property
    def connected(self) -> bool:
        """True if the socket has a receiver."""
        return self._socket is not None

    def send(self, tree: dict[str, Any], *, wait: bool = False) -> None:
        """Send one JSON object. If the receiver has no space for the object, it is dropped; with
        `wait`, it is dropped only after a second.
        """
        if self._socket is None:
            return
        self._socket.settimeout(ROOM_SECONDS if wait else 0.0)
        try:
            self._socket.send(encode_datagram(tree))
        except OSError:
            return  # the supervisor is gone or behind: training continues without it

    def close(self) -> None:
        """Close the socket. Later calls of `send` do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def encode_datagram(tree: dict[str, Any]) -> bytes:
    """Return the datagram for the JSON object `tree`. If it would be too long, the texts `message`,
    `why` and `doing` are cut."""
    data = _bytes(json.dumps(tree, ensure_ascii=False))
    for key in ("message", "why", "doing"):
        if len(data) > LARGEST_DATAGRAM and isinstance(tree.get(key), str):
            short = _bytes(tree[key])[: LARGEST_DATAGRAM // 4].decode(errors="ignore")
            tree = {**tree, key: short + "…"}
            data = _bytes(json.dumps(tree, ensure_ascii=False))
    return data


def _bytes(text: str) -> bytes:
    """Return text as UTF-8. A file name that is not valid UTF-8 is encoded too, in a form that
    json.loads can read.
    """
    return text.encode("utf-8", "surrogatepass")


def _connect(address: Path) -> socket.socket | None:
    # A Unix address has at most 107 bytes, and a run directory may have more. So the directory is
    # opened, and the address begins with /proc/self/fd.
    try:
        directory = os.open(address.parent, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        sender.connect(f"/proc/self/fd/{directory}/{address.name}")
    except OSError:
        sender.close()
        return None
    finally:
        os.close(directory)
    return sender
