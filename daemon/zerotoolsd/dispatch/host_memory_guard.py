"""Watches the memory of the host, and acts before it is used up."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.sensors.cgroup_allowance import CgroupMemory, read_cgroup_memory
from zerotools.sensors.host_sensor import HostSensor
from zerotools.sensors.snapshot import Host
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.backends.start_transient_unit import SLICE
from zerotoolsd.config.config_tables import NOTHING, PressureConfig
from zerotoolsd.dispatch.choose_low_memory_action import (
    HIGHEST,
    Escalation,
    EscalationStep,
    next_act,
    wanted_level,
)
from zerotoolsd.dispatch.end_jobs_for_memory import MemoryPreemption
from zerotoolsd.dispatch.forecast_memory_exhaustion import (
    LONG_SECONDS,
    MemorySample,
)
from zerotoolsd.monitoring.history_recorder import host_memory
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.memory_left_for_jobs import HostMemoryNow
from zerotoolsd.resources.check_gpu_use_of_jobs import Owner

MOST = 1.5
"""The largest memory that a job may need is this many times the part of its estimate that is
certain.
"""
IDLE_SECONDS = 2.0
"""Seconds between two checks while no job is running."""
log = logging.getLogger(__name__)


class HostMemoryGuard:
    """The loop that watches the memory of the host. It acts only against jobs of this daemon.

    `live` returns the running attempts, `host_now` returns the host memory that these attempts use,
    and `expected` returns the memory that each job is expected to use. `read` returns the memory of
    the host and, if it has a limit, of the daemon's control group. Each of the two is checked
    separately.
    """

    def __init__(
        self,
        config: PressureConfig,
        asking: MemoryPreemption,
        live: Callable[[], Sequence[AttemptRow]],
        host_now: Callable[[], HostMemoryNow],
        expected: Callable[[], Mapping[int, int]],
        wake: Callable[[], None],
        read: Callable[[], Sequence[HostReading]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._asking = config, asking
        self._live, self._host_now, self._expected = live, host_now, expected
        self._wake, self._read, self._clock = wake, read, clock
        self._samples: dict[bool, deque[MemorySample]] = {}
        """The samples of the host (key False) and of the control group (key True)."""
        self._readings: dict[bool, HostReading] = {}
        self._escalation = Escalation()

    @property
    def why_none_starts(self) -> str | None:
        """Return the reason why no job may start now; None if jobs may start."""
        if min(self._escalation.level, HIGHEST[self._config.most]) < EscalationStep.WAIT:
            return None
        return f"no job starts while the memory of the host runs out: {self._escalation.why}"

    async def run_forever(self) -> None:
        """Check the memory again and again, until cancelled."""
        if self._config.most == NOTHING:
            return
        while True:
            try:
                self.check()
            except sqlite3.OperationalError as error:
                log.error("the queue cannot be written now: %s", error)
            except Exception:  # out of memory, or a defect: the next check is independent
                log.exception("the memory of the host cannot be checked now")
            busy = self._live() or self._escalation.level
            await asyncio.sleep(self._config.seconds if busy else IDLE_SECONDS)

    def check(self) -> None:
        """Measure the memory once, and act if it is running out."""
        live, now = self._live(), self._clock()
        self._sample(now)
        if any(wanted_level(each)[0] for each in self._samples.values()):
            self._add_expected(live)  # the expected use of jobs is computed only then
        found = {limit: wanted_level(each) for limit, each in self._samples.items()}
        worst = max(found, key=lambda limit: found[limit][0])
        before, self._escalation = self._escalation, self._escalation.updated(*found[worst], now)
        if (before.level >= EscalationStep.WAIT) != (self._escalation.level >= EscalationStep.WAIT):
            log.warning("%s", self.why_none_starts or "the memory of the host is enough again")
            self._wake()
        self._asking.forget_ended(live)
        wanted = min(self._escalation.wanted, HIGHEST[self._config.most])
        if wanted >= EscalationStep.SAVE and live:
            holders = self._asking.holders(live, self._host_now().held)
            act = next_act(wanted, holders, self._samples[worst][-1].total, now)
            if act is not None:
                why = f"stops because the memory of the host runs out: {self._escalation.why}"
                self._asking.execute(act, live, why, now)

    def _sample(self, now: float) -> None:
        """Take one sample of the host memory and one of the control group. `now` is a monotonic
        time in seconds.
        """
        found = {reading.of_limit: reading for reading in self._read()}
        most = int(LONG_SECONDS / self._config.seconds) + 2
        for limit, reading in found.items():
            sample = reading.sample(now, self._readings.get(limit))
            self._samples.setdefault(limit, deque(maxlen=most)).append(sample)
        self._readings = found
        self._samples = {limit: self._samples[limit] for limit in found}

    def _add_expected(self, live: Sequence[AttemptRow]) -> None:
        """Add to the newest samples the memory that running jobs are still expected to take."""
        expected = {job: size for job, size in self._expected().items() if size}
        if not expected:
            return
        held = self._host_now().held
        coming = sum(max(0, size - held.get(job, 0)) for job, size in expected.items())
        below = {job for job, size in expected.items() if held.get(job, 0) < MOST * size}
        loads = (each for each in live if each.job_id in below)
        loading = any(last_report.report_so_far(Path(each.run_dir)).step is None for each in loads)
        for samples in self._samples.values():
            samples[-1] = replace(samples[-1], coming=coming, loading=loading)


Live = Callable[[], Sequence[AttemptRow]]


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
