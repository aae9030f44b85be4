"""The last minutes of the machine, while the screen was open: used if no daemon keeps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from zerotools.sensors.snapshot import Snapshot

SAMPLES = 60


class RecentSamples:
    """Samples by the names of the daemon's series (`GET /v1/history`); the network has separate
    names."""

    def __init__(self, most: int = SAMPLES) -> None:
        self._most = most
        self._series: dict[str, deque[float | None]] = {}
        self._count = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add a sample of all series; a missing one is a gap."""
        self._count = min(self._count + 1, self._most)
        now = dict(_values(snapshot))
        for name in now.keys() - self._series.keys():
            self._series[name] = deque([None] * (self._count - 1), self._most)
        for name in list(self._series):
            series = self._series[name]
            series.append(now.get(name))
            if all(value is None for value in series):
                del self._series[name]

    def series(self) -> dict[str, tuple[float | None, ...]]:
        """Return the samples of each, the oldest first, as many as are kept: None for a gap."""
        missing = (None,) * (self._most - self._count)
        return {name: (*missing, *values) for name, values in self._series.items()}


def _values(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    host = snapshot.host
    values: list[tuple[str, float | None]] = [
        ("host.memory_used_bytes", host.memory_used_bytes),
        ("host.cpu_percent", host.cpu_percent),
        ("host.network_received_bytes_per_second", host.network_received_bytes_per_second),
        ("host.network_sent_bytes_per_second", host.network_sent_bytes_per_second),
    ]
    for gpu in (gpu for gpu in snapshot.gpus if gpu.uuid):
        values.append((f"gpu.{gpu.uuid}.memory_used_bytes", gpu.memory_used_bytes))
        values.append((f"gpu.{gpu.uuid}.utilization_percent", gpu.utilization_percent))
    return ((name, float(value)) for name, value in values if value is not None)
