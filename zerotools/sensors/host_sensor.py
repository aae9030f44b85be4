"""Host memory, load, network and pressure, through psutil and /proc/pressure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from zerotools.sensors.snapshot import Host, Pressure, Stall

NO_PRESSURE = "this kernel does not report pressure (no /proc/pressure)"
FIRST_READING = "it is known only from the second reading on"


class HostSensor:
    """Reads the state of the host. The use of processors and network is measured between two
    readings.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._pressure = proc / "pressure"
        self._network = NetworkUse()
        self._before: tuple[float, float] | None = None

    def read(self) -> Host:
        """Return the current state of the host. A reading takes a millisecond."""
        memory = psutil.virtual_memory()
        swap = psutil.swap_memory()
        busy = self._cpu_percent()
        received, sent = self._network.read()
        pressure = read_pressure(self._pressure)
        missing: dict[str, str] = {}
        if received is None:
            missing |= dict.fromkeys(_NETWORK, FIRST_READING)
        if busy is None:
            missing["cpu_percent"] = FIRST_READING
        if pressure is None:
            missing["pressure"] = NO_PRESSURE
        return Host(
            memory_total_bytes=memory.total,
            memory_available_bytes=memory.available,
            memory_used_bytes=memory.total - memory.available,
            swap_total_bytes=swap.total,
            swap_used_bytes=swap.used,
            cpu_count=os.cpu_count() or 1,
            load_average=os.getloadavg(),
            cpu_percent=busy,
            network_received_bytes_per_second=received,
            network_sent_bytes_per_second=sent,
            pressure=pressure,
            missing=missing,
        )

    def _cpu_percent(self) -> float | None:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        now = (sum(times[:8]), idle)  # the last two fields, guest time, are in the first already
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        share = 1 - (now[1] - before[1]) / (now[0] - before[0])
        return round(100 * min(max(share, 0.0), 1.0), 1)


_NETWORK = ("network_received_bytes_per_second", "network_sent_bytes_per_second")


def read_pressure(directory: Path) -> Pressure | None:
    """Read the pressure files in `directory`. Return None if the kernel does not report
    pressure.
    """
    stalls = {name: read_stall(directory / name) for name in ("memory", "cpu", "io")}
    return Pressure(**stalls) if any(stalls.values()) else None


def read_stall(path: Path) -> Stall | None:
    """Read one pressure file of the host or of a control group. Return None if the file does not
    exist.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    return parse_stall(text)


def parse_stall(text: str) -> Stall | None:
    """Parse a file of /proc/pressure: lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    Return None if the text has no such line."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        kind, *pairs = line.split()
        for pair in pairs:
            name, _, value = pair.partition("=")
            if kind in ("some", "full") and name in ("avg10", "avg60"):
                values[f"{kind}_{name}_percent"] = float(value)
    return Stall(**values) if "some_avg10_percent" in values else None


Counters = Mapping[str, tuple[int, int]]
"""The bytes that each link has received and sent since the machine started, by the name of the
link.
"""


def read_counters() -> Counters:
    """Return the kernel's byte counters of all network links."""
    found = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (each.bytes_recv, each.bytes_sent) for name, each in found.items()}


class NetworkUse:
    """Measures the network traffic between two readings.

    Only hardware links are counted, because traffic over a bridge also goes over a hardware link.
    Without hardware links, as in a container, all links except `lo` are counted. InfiniBand is not
    counted, except IP over InfiniBand. `links` is the directory /sys/class/net.
    """

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
        """Return the received and the sent bytes per second since the last reading. Both are None
        at the first reading.
        """
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
