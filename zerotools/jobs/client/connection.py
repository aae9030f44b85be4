"""HTTP over the daemon's Unix socket."""

from __future__ import annotations

import http.client
from pathlib import Path

from zerotools.jobs.client import location


class SocketConnection(http.client.HTTPConnection):
    """One connection to the socket at `path`; `timeout_seconds` is for each wait."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path
        self._timeout_seconds = timeout_seconds

    def connect(self) -> None:
        """Connect to the socket. Raises OSError if nothing listens there."""
        self.sock = location.connect(self._path, self._timeout_seconds)
