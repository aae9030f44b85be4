"""The network traffic of the host, in bytes per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

Counters = Mapping[str, tuple[int, int]]
"""Bytes received and sent since the machine started, by the name of the link."""


def read_counters() -> Counters:
    """Return the kernel's counters."""
    found = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (each.bytes_recv, each.bytes_sent) for name, each in found.items()}


class NetworkUse:
    """The traffic between two readings, over hardware links: traffic over a bridge would be counted
    twice. Without hardware links, as in a container, all but `lo` count. InfiniBand is not counted,
    except IP over it. `links` is /sys/class/net."""

    def __init__(
        self,
        links: Path = Path("/sys/class/net"),
        counters: Callable[[], Counters] = read_counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._counters = counters
        self._clock = clock
        self._before: tuple[float, Counters] | None = None

    def read(self) -> tuple[float | None, float | None]:
        """Return received and sent, in bytes per second; None at the first reading."""
        when, now = self._clock(), self._counters()
        last, self._before = self._before, (when, now)
        if last is None or when <= last[0]:
            return None, None
        seconds, before = when - last[0], last[1]
        real = [name for name in now if (self._links / name / "device").exists()]
        counted = [name for name in real or now if name in before and name != "lo"]
        received, sent = (
            sum(max(0, now[name][way] - before[name][way]) for name in counted) / seconds
            for way in (0, 1)
        )
        return received, sent
