"""Progress datagrams to the supervisor. Training never waits for them, and never fails with them.

One JSON object of at most 4 KiB each. Steps and heartbeats are dropped if the receiver is behind;
`checkpoint`, `error` and `eval` events wait up to a second for room.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

LARGEST_DATAGRAM = 4096
HEARTBEAT_SECONDS = 2.0
_DURABLE = ("checkpoint", "error", "eval")
_DURABLE_SECONDS = 1.0


class Notifier:
    """The rank's end of the notify socket; without an address, every call does nothing."""

    def __init__(self, address: str | None, rank: int) -> None:
        self.rank = rank
        self.phase = "init"
        self.step = 0
        self._sent = 0.0
        self._socket = _connect(Path(address)) if address else None

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def enter(self, phase: str) -> None:
        """Begin a phase, and say so."""
        self.phase = phase
        self._send({}, wait=False)

    def heartbeat(self) -> None:
        """Say that this rank is alive, at most every two seconds."""
        if time.monotonic() - self._sent >= HEARTBEAT_SECONDS:
            self._send({}, wait=False)

    def event(self, name: str, **fields: Any) -> None:
        """Report an event with its fields."""
        self._send({"event": name, **fields}, wait=name in _DURABLE)

    def _send(self, fields: dict[str, Any], *, wait: bool) -> None:
        if self._socket is None:
            return
        common = {
            "rank": self.rank,
            "time": time.time(),
            "phase": self.phase,
            "step": self.step,
            "rss_bytes": resident_bytes(),
        }
        self._sent = time.monotonic()
        self._socket.settimeout(_DURABLE_SECONDS if wait else 0.0)
        try:
            self._socket.send(_encode({**common, **fields}))
        except OSError:
            return  # the supervisor is gone or behind: training goes on without it


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _encode(tree: dict[str, Any]) -> bytes:
    data = json.dumps(tree, ensure_ascii=False).encode()
    for key in ("message", "why"):
        if len(data) > LARGEST_DATAGRAM and isinstance(tree.get(key), str):
            short = tree[key].encode()[: LARGEST_DATAGRAM // 4].decode(errors="ignore")
            tree = {**tree, key: short + "…"}
            data = json.dumps(tree, ensure_ascii=False).encode()
    return data


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
