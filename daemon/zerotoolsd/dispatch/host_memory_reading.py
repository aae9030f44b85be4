"""Reads the memory of the host and of the control group of the jobs, and how much of it jobs
use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zerotools.sensors.cgroup_allowance import CgroupMemory, read_cgroup_memory
from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.snapshot import Host
from zerotoolsd.attempts.backends.start_transient_unit import SLICE
from zerotoolsd.dispatch.memory_forecast import MemorySample
from zerotoolsd.monitoring.history_recorder import host_memory
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.memory_left_for_jobs import HostMemoryNow
from zerotoolsd.resources.check_gpu_use_of_jobs import Owner

_MANAGER = "user@"
"""Prefix of the unit of a user's systemd instance. The units that it starts are below this
unit.
"""


@dataclass(frozen=True)
class HostReading:
    """The memory of the host, or of the control group (`of_limit` is True): total and available, in
    bytes.

    A reading also has the percentage of time in which all tasks waited for memory (PSI), and two
    counts: how often the kernel reclaimed memory at the limits of the control groups, and how often
    it killed programs there. The counts begin when the groups are created. A value is None if it is
    unknown.
    """

    total: int
    available: int
    stalled_percent: float | None = None
    of_limit: bool = False
    reclaims: int | None = None
    kills: int | None = None

    def sample(self, clock: float, before: HostReading | None) -> MemorySample:
        """Return this reading as a sample for the time `clock` (monotonic, in seconds).
        `before` is the previous reading.
        """
        return MemorySample(
            clock,
            self.total,
            self.available,
            stalled_percent=self.stalled_percent,
            of_limit=self.of_limit,
            reclaimed=before is not None and _rose(before.reclaims, self.reclaims),
            killed=before is not None and _rose(before.kills, self.kills),
        )


def _rose(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


@dataclass(frozen=True)
class HostMemoryReader:
    """Reads the memory of the host.

    `in_units` is True if the jobs run in systemd units, which are not in the control group
    of the daemon.
    """

    in_units: bool = False
    read_host: Callable[[], Host] = field(default_factory=lambda: HostSensor().read)
    read_group: Callable[[Callable[[str], str]], CgroupMemory] = field(
        default=lambda place: read_cgroup_memory(place=place)
    )

    def read(self) -> tuple[HostReading, ...]:
        """Return the reading of the host, then of the control group if it has a memory limit."""
        host = self.read_host()
        stall = host.pressure.memory if host.pressure else None
        found = HostReading(
            total=host.memory_total_bytes,
            available=host.memory_available_bytes,
            stalled_percent=None if stall is None else stall.full_avg10_percent,
        )
        group = self.read_group(group_of_units if self.in_units else str)
        if group.left_bytes is None or group.limit_bytes is None:
            return (found,)
        return found, HostReading(
            total=group.limit_bytes,
            available=group.left_bytes,
            stalled_percent=group.stalled_percent,
            of_limit=True,
            reclaims=group.reclaims,
            kills=group.ooms,
        )

    def available(self) -> int:
        """Return the host memory, in bytes, that programs can still use."""
        return min(reading.available for reading in self.read())


def group_of_units(own: str) -> str:
    """Return the control group (slice) that contains the systemd units of jobs. `own` is the
    control group of the daemon.
    """
    parts = own.split("/")
    manager = next((n for n, part in enumerate(parts) if part.startswith(_MANAGER)), None)
    above = [] if manager is None else parts[1 : manager + 1]
    return "/".join(["", *above, SLICE])


AGE_SECONDS, SPARED = 2.0, 50.0
"""A measurement is kept for this many seconds, or for this many times its duration, if that is
longer.

Reading all processes takes 10 ms, and much longer on a large server. If a job has grown
since the measurement, that counts as expected growth.
"""


class HostMemoryUse:
    """The host memory that running jobs use. `live` returns the running attempts."""

    def __init__(
        self,
        live: Callable[[], Sequence[AttemptRow]],
        available: Callable[[], int],
        measure: Callable[[Sequence[AttemptRow]], Mapping[Owner, int]] = host_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._available, self._measure = live, available, measure
        self._clock = clock
        self._due = float("-inf")
        self._newest = HostMemoryNow(0)

    def read(self) -> HostMemoryNow:
        """Return how much host memory programs can still use, and how much jobs hold. The values
        may have been measured a short time ago.
        """
        begun = self._clock()
        if begun > self._due:
            held = self._measure(self._live())
            of_jobs = {job: size for (job, _), size in held.items()}
            self._newest = HostMemoryNow(self._available(), of_jobs)
            now = self._clock()
            self._due = now + max(AGE_SECONDS, SPARED * (now - begun))
        return self._newest
