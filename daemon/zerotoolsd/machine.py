"""Snapshots of the machine for the event loop: taken in a thread, one at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from zerotools.sensors.snapshot import Snapshot


class SnapshotReader(Protocol):
    """Where snapshots come from; `read` may block for some seconds."""

    def read(self) -> Snapshot:
        """The machine now."""
        ...

    def close(self) -> None:
        """Let go of whatever it holds."""
        ...


class SnapshotCache:
    """The newest snapshot, taken anew when it is older than asked."""

    def __init__(self, source: SnapshotReader) -> None:
        self._source = source
        self._lock = asyncio.Lock()
        self._newest: Snapshot | None = None
        self._taken = float("-inf")

    async def snapshot(self, *, most_age_seconds: float = 1.0) -> Snapshot:
        """The machine, as it was at most this long ago."""
        async with self._lock:
            if self._newest is None or time.monotonic() - self._taken > most_age_seconds:
                self._newest = await asyncio.to_thread(self._source.read)
                self._taken = time.monotonic()
            return self._newest

    def gpu_name(self, uuid: str) -> str:
        """What people call a GPU: its index as it was seen last, or the UUID."""
        gpus = () if self._newest is None else self._newest.gpus
        return next((f"GPU {gpu.index}" for gpu in gpus if gpu.uuid == uuid), uuid)

    def close(self) -> None:
        """Release the source."""
        self._source.close()
