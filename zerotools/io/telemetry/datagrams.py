"""Progress datagrams to the supervisor of an attempt: one JSON object of at most 4 KiB each.

The sender never waits for the receiver, and never fails with it. Standard library only, and no
newer syntax than that of Python 3.9: programs of users send with this too.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

LARGEST_DATAGRAM = 4096
ROOM_SECONDS = 1.0
"""The time that a datagram which must not be lost waits for space."""


class Sender:
    """The sending end of the notify socket; without an address, or a receiver, it sends nothing."""

    def __init__(self, address: str | None) -> None:
        self._socket = _connect(Path(address)) if address else None

    @property
    def connected(self) -> bool:
        """True if there is a receiver."""
        return self._socket is not None

    def send(self, tree: dict[str, Any], *, wait: bool = False) -> None:
        """Send one object; drop it if the receiver is behind, with `wait` only after a second."""
        if self._socket is None:
            return
        self._socket.settimeout(ROOM_SECONDS if wait else 0.0)
        try:
            self._socket.send(encode(tree))
        except OSError:
            return  # the supervisor is gone or behind: training continues without it

    def close(self) -> None:
        """Send no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def resident_bytes() -> int:
    """Return resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def encode(tree: dict[str, Any]) -> bytes:
    """Encode a datagram; sentences that make it too long are cut."""
    data = _bytes(json.dumps(tree, ensure_ascii=False))
    for key in ("message", "why", "doing"):
        if len(data) > LARGEST_DATAGRAM and isinstance(tree.get(key), str):
            short = _bytes(tree[key])[: LARGEST_DATAGRAM // 4].decode(errors="ignore")
            tree = {**tree, key: short + "…"}
            data = _bytes(json.dumps(tree, ensure_ascii=False))
    return data


def _bytes(text: str) -> bytes:
    """Return UTF-8, also of file names that are not; json.loads reads it."""
    return text.encode("utf-8", "surrogatepass")


def _connect(address: Path) -> socket.socket | None:
    # A Unix address holds 107 bytes and run directories are longer: go by an open directory.
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
