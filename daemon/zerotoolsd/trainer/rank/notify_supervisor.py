"""Sends datagrams with the progress of a rank to the supervisor. Training never waits for them and
never fails because of them.

If the receiver is slow, datagrams about steps and heartbeats are dropped. The events `checkpoint`,
`error`, `eval` and `phase` wait up to a second.
"""

from __future__ import annotations

import time
from typing import Any

from zerotools.io.telemetry.datagram_sender import LARGEST_DATAGRAM, Sender, resident_bytes
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import HeartbeatWriter

__all__ = ["LARGEST_DATAGRAM", "Notifier", "resident_bytes"]

HEARTBEAT_SECONDS = 2.0
_DURABLE = ("checkpoint", "error", "eval", "phase")


class Notifier:
    """Sends datagrams to the supervisor's socket; sends nothing if it has no socket address."""

    def __init__(
        self, address: str | None, rank: int, heartbeat: HeartbeatWriter | None = None
    ) -> None:
        self.rank = rank
        self.heartbeat_writer = heartbeat or HeartbeatWriter()
        self.phase = "init"
        self.step = 0
        self._sent = 0.0
        self._sender = Sender(address)

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()

    def enter(self, phase: str) -> None:
        """Report that the phase `phase` begins."""
        self.phase = phase
        self._send({}, wait=False)

    def heartbeat(self) -> None:
        """Report that this rank is alive, with at most one datagram in two seconds."""
        self.heartbeat_writer.beat(self.step)
        if time.monotonic() - self._sent >= HEARTBEAT_SECONDS:
            self._send({}, wait=False)

    def event(self, name: str, **fields: Any) -> None:
        """Report the event `name` with its fields."""
        self.heartbeat_writer.beat(self.step)
        self._send({"event": name, **fields}, wait=name in _DURABLE)

    def _send(self, fields: dict[str, Any], *, wait: bool) -> None:
        if not self._sender.connected:
            return
        common = {
            "rank": self.rank,
            "time": time.time(),
            "phase": self.phase,
            "step": self.step,
            "rss_bytes": resident_bytes(),
        }
        self._sent = time.monotonic()
        self._sender.send({**common, **fields}, wait=wait)
