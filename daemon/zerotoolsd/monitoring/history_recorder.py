"""Samples the use of the machine by its jobs, and stores the samples. An error in this module
affects no job.

The series, by the names that clients get:

    host.memory_used_bytes                            bytes
    host.memory_available_bytes                       bytes
    host.swap_used_bytes                              bytes
    host.cpu_percent                                  percent of all cores together
    host.memory_stalled_percent                       PSI "some" of the last 10 s
    gpu.UUID.memory_used_bytes                        bytes
    gpu.UUID.utilization_percent
    gpu.UUID.temperature_celsius
    gpu.UUID.power_watts
    job.ID.host_memory_bytes                          resident, of all processes of its attempt
    job.ID.gpu.UUID.memory_used_bytes                 from the driver's list of processes

Every user of the machine may see these values: /proc and nvidia-smi show them, too.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.sensors.snapshot import Gpu, Host, Snapshot
from zerotoolsd.config.config_tables import HistoryConfig
from zerotoolsd.monitoring.history_file import (
    TIERS,
    AttemptPeak,
    Bucket,
    HistoryFile,
    bucket_of,
    is_damage,
    rolled_up,
    set_aside,
    step_for,
    tier_for,
)
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.check_gpu_use_of_jobs import MeasuredUse, Owner, roots_of
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.supervisor.procfs import Process, all_processes, descendants

ReadAll = Callable[[], Mapping[int, Process]]


def host_memory(attempts: Iterable[AttemptRow], read: ReadAll = all_processes) -> dict[Owner, int]:
    """Return the resident memory of each attempt, in bytes: the sum over all descendants of its
    supervisor or keeper.

    A shared page counts once for each process that has it, as in the supervisor's reports.
    """
    roots = {(a.job_id, a.number): roots_of(a) for a in attempts}
    if not any(roots.values()):
        return {}
    table = read()
    found = {}
    for owner, those in roots.items():
        ours: dict[int, int] = {}
        for pid, start_ticks in those:
            root = table.get(pid)
            if root is not None and root.start_ticks == start_ticks:
                ours |= {each.pid: each.rss_bytes for each in descendants(pid, table)}
        supervisors = {pid for pid, _ in those}
        held = sum(size for pid, size in ours.items() if pid not in supervisors)
        if ours:
            found[owner] = held
    return found


WRITE_SECONDS = 10.0
"""Seconds between two writes. A killed daemon loses the samples since the last write."""
HOST_SECONDS = 10.0
"""Seconds between two measurements of the host memory of jobs. Each one scans all processes."""
SPARED = 100.0
"""The shortest pause after a scan of all processes, as a multiple of the scan's duration."""
SOON_SECONDS = 1.0
QUIET = 10.0
"""While no job runs, the interval between two samples is multiplied by this factor."""
AGAIN_SECONDS = 60.0
"""Seconds after which a failed write is repeated."""
PATIENCE_SECONDS = 0.5
_MOST_WAITING = 3600
_AT_ONCE = 50
"""At most this many buckets of an answer are read before other requests are served."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HistoryAnswer:
    """Measurements for consecutive intervals of `step_seconds`, the oldest first.

    If all buckets or the newest buckets are missing, `trouble` is the reason.
    """

    step_seconds: int
    buckets: Sequence[Bucket] = ()
    trouble: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as columns: `times`, and `mean` and `most` of each series; null
        for missing values.
        """
        names = sorted({name for bucket in self.buckets for name in bucket.series})
        found = {name: [bucket.series.get(name) for bucket in self.buckets] for name in names}
        return {
            "step_seconds": self.step_seconds,
            "times": [bucket.start for bucket in self.buckets],
            "series": {
                name: {
                    "mean": [None if each is None else _plain(each.mean) for each in ranges],
                    "most": [None if each is None else _plain(each.most) for each in ranges],
                }
                for name, ranges in found.items()
            },
            "trouble": self.trouble,
        }


@dataclass
class _Waiting:
    buckets: list[Bucket] = field(default_factory=list)
    peaks: dict[Owner, AttemptPeak] = field(default_factory=dict)


@dataclass(frozen=True)
class HistoryClocks:
    """The clocks of a recorder, in seconds since the epoch.

    `removal` returns the time at which samples are too old: a wrong clock must not remove all.
    `is_synchronised` returns whether the clock is known to be right; None if unknown.
    """

    now: Callable[[], float] = time.time
    removal: Callable[[], float] = time.time
    is_synchronised: Callable[[], bool | None] = lambda: None


class HistoryRecorder:
    """Samples `machine` and the jobs on it.

    `live` returns the running attempts, and `use` returns the GPU memory that each of them uses.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        machine: SnapshotCache,
        config: HistoryConfig,
        live: Callable[[], Sequence[AttemptRow]],
        use: Callable[[Snapshot | None], MeasuredUse],
        measure_host: Callable[[Sequence[AttemptRow]], Mapping[Owner, int]] = host_memory,
        clocks: HistoryClocks | None = None,
    ) -> None:
        self._directory, self._store, self._machine = directory, store, machine
        self._config, self._live, self._use = config, live, use
        self._measure_host, self._clocks = measure_host, clocks or HistoryClocks()
        self._file: HistoryFile | None = None
        self._waiting = _Waiting()
        self._host: Mapping[Owner, int] = {}
        self._measured: set[str] = set()
        self._host_due = self._write_due = float("-inf")
        self.trouble: str | None = None if config.enabled else "[history] enabled = false"

    async def run_forever(self) -> None:
        """Take samples and write them to the file until this task is cancelled."""
        if not self._config.enabled:
            return
        while True:
            pause = self._config.seconds * (1 if self._live() else QUIET)
            try:
                snapshot = await self._machine.snapshot(
                    most_age_seconds=self._config.seconds / 2, patience_seconds=PATIENCE_SECONDS
                )
                self.add(snapshot)
                if time.monotonic() >= self._write_due:
                    self.write()
            except Exception:  # out of memory, or a defect: the next sample may succeed
                log.exception("the machine cannot be sampled now")
            await asyncio.sleep(pause)

    def add(self, snapshot: Snapshot) -> None:
        """Add the measurements in `snapshot` to the samples that are not written yet."""
        self._measure_host_if_due(self._live())
        gpus = self._use(snapshot).of_attempts
        values = series_of(snapshot, gpus, self._host)
        self._waiting.buckets = [*self._waiting.buckets, bucket_of(snapshot.taken_at, values)]
        del self._waiting.buckets[:-_MOST_WAITING]
        for owner in {*gpus, *self._host}:
            most = max(gpus.get(owner, {}).values(), default=None)
            self._merge_peak(
                replace(self._new_peak(owner), host_bytes=self._host.get(owner), gpu_bytes=most)
            )

    def _measure_host_if_due(self, live: Sequence[AttemptRow]) -> None:
        now, tokens = time.monotonic(), {attempt.token for attempt in live}
        if tokens != self._measured:  # its ranks are there a moment later
            self._measured, self._host_due = tokens, min(self._host_due, now + SOON_SECONDS)
        if not live:
            self._host = {}
        elif now >= self._host_due:
            self._host = self._measure_host(live)
            took = time.monotonic() - now
            self._host_due = now + max(HOST_SECONDS, SPARED * took)

    def _new_peak(self, owner: Owner) -> AttemptPeak:
        if owner in self._waiting.peaks:
            return AttemptPeak(job_id=owner[0], attempt=owner[1])
        job = self._store.job(owner[0])
        return AttemptPeak(job_id=job.id, attempt=owner[1], uid=job.uid, name=job.name)

    def _merge_peak(self, peak: AttemptPeak) -> None:
        owner = (peak.job_id, peak.attempt)
        known = self._waiting.peaks.get(owner)
        self._waiting.peaks[owner] = peak if known is None else peak.with_more(known)

    def write(self) -> None:
        """Write the waiting samples. A failure is logged once, and the write is repeated later."""
        self._write_due = time.monotonic() + WRITE_SECONDS
        try:
            file = self._opened()
            seen = self._note_ended(file)
            seconds = sorted(self._waiting.buckets, key=lambda each: each.start)
            file.add(rolled_up(seconds, 1), self._waiting.peaks.values(), seen)
            self._waiting = _Waiting()
            is_sure = self._clocks.is_synchronised() is not False
            file.roll_up(self._clocks.now(), self._clocks.removal(), is_sure=is_sure)
            self.trouble = None
        except (sqlite3.Error, OSError) as error:
            self._report_failure(error)

    async def read(self, seconds: float, most_points: int) -> HistoryAnswer:
        """Return the history of the last `seconds`, in at most `most_points` + 1 buckets.

        The history is read in steps, so that the event loop serves other requests in between.
        """
        now, number = self._clocks.now(), tier_for(seconds, most_points)
        step = step_for(TIERS[number], seconds, most_points)
        begin = int(now - seconds) // step * step
        found: list[Bucket] = []
        try:
            for at in range(begin, int(now) + 1, step * _AT_ONCE):
                found += rolled_up(self._buckets(number, at, at + step * _AT_ONCE), step)
                await asyncio.sleep(0)
        except (sqlite3.Error, OSError) as error:
            self._report_failure(error)
        return HistoryAnswer(step, found, self.trouble)

    def _buckets(self, number: int, begin: int, end: int) -> list[Bucket]:
        """Return the buckets from `begin` to `end` in tier `number`.

        This tier has no buckets yet for the newest time. For that time, buckets of finer tiers
        follow, and then samples that are not written yet.
        """
        found: list[Bucket] = []
        for tier in range(number, -1, -1):
            part = self._opened().buckets(tier, begin, end) if self._config.enabled else []
            begin = part[-1].start + TIERS[tier].step_seconds if part else begin
            found += part
        waiting = [each for each in self._waiting.buckets if begin <= each.start < end]
        return found + sorted(waiting, key=lambda each: each.start)

    def peaks(self, job_id: int | None, limit: int) -> list[AttemptPeak]:
        """Return the peak memory of attempts of one job (None: of all jobs), the newest first.

        A running attempt has its peak up to now.
        """
        try:
            if not self._config.enabled:
                return []
            self._note_ended(self._opened())
            found = self._opened().peaks(job_id, limit)
        except (sqlite3.Error, OSError) as error:
            self._report_failure(error)
            found = []
        peaks = {(each.job_id, each.attempt): each for each in found}
        for owner, fresh in self._waiting.peaks.items():
            if job_id in (None, owner[0]):
                known = peaks.get(owner)
                peaks[owner] = fresh if known is None else fresh.with_more(known)
        return [peaks[owner] for owner in sorted(peaks, reverse=True)][:limit]

    def close(self) -> None:
        """Write the waiting samples, and close the file."""
        try:
            if self._config.enabled:
                self.write()
        except Exception:  # the daemon ends in any case
            log.exception("the last measurements cannot be stored")
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> HistoryFile:
        if self._file is None:
            self._file = HistoryFile(self._directory, bytes_of(self._config.most_bytes))
            if (why := self._file.was_damaged) is not None:
                log.warning("the history was damaged (%s); a new history is started", why)
        return self._file

    def _note_ended(self, file: HistoryFile) -> int:
        """Store the peak memory of attempts that have ended since the last call.

        Return the number of the last event of the queue that was read.
        """
        seen = min(file.last_event, self._store.last_change)
        events = self._store.events(seen)
        for job_id, number in {(e.job_id, e.attempt) for e in events}:
            if job_id is not None and number is not None:
                self._note_attempt(job_id, number)
        return events[-1].seq if events else seen

    def _note_attempt(self, job_id: int, number: int) -> None:
        try:
            for attempt in self._store.attempts(job_id):
                if attempt.number == number and attempt.state == ENDED:
                    self._merge_peak(self._reported_peak(attempt))
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # its row is damaged
            log.warning("job %d: its peak memory is not stored: %s", job_id, error)

    def _reported_peak(self, attempt: AttemptRow) -> AttemptPeak:
        job, result = self._store.job(attempt.job_id), attempt.result or {}
        return AttemptPeak(
            job_id=job.id,
            attempt=attempt.number,
            uid=job.uid,
            name=job.name,
            ended=attempt.ended,
            host_bytes=_count(result.get("peak_host_bytes")),
            gpu_reported_bytes=_count(result.get("peak_gpu_bytes")),
        )

    def _report_failure(self, error: Exception) -> None:
        said = f"the history cannot be read or written: {error}"
        if said != self.trouble:
            log.warning("%s", said)
        self.trouble = said
        self._write_due = time.monotonic() + AGAIN_SECONDS
        if self._file is not None:
            self._file.close()
            self._file = None
        if is_damage(error):
            try:
                set_aside(self._directory)
            except OSError as trouble:
                log.warning("the damaged file of the history cannot be renamed: %s", trouble)


def _plain(value: float) -> float:
    """Round `value` to the digits that a float32 has."""
    return float(f"{value:.7g}")


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


_OF_GPU = ("memory_used_bytes", "utilization_percent", "temperature_celsius", "power_watts")


def series_of(
    snapshot: Snapshot,
    gpus_of_attempts: Mapping[Owner, Mapping[str, int]],
    host_of_attempts: Mapping[Owner, int],
) -> dict[str, float]:
    """Return the measurements of one moment keyed by the name of the series; series without a
    measurement are left out.
    """
    found = _host(snapshot.host)
    if snapshot.gpus_error is None:
        for gpu in snapshot.gpus:
            found |= _gpu(gpu)
    for (job, _), used in host_of_attempts.items():
        found[f"job.{job}.host_memory_bytes"] = used
    for (job, _), gpus in gpus_of_attempts.items():
        for uuid, used in gpus.items():
            found[f"job.{job}.gpu.{uuid}.memory_used_bytes"] = used
    return found


def _host(host: Host) -> dict[str, float]:
    stall = host.pressure.memory if host.pressure else None
    values = {
        "memory_used_bytes": host.memory_used_bytes,
        "memory_available_bytes": host.memory_available_bytes,
        "swap_used_bytes": host.swap_used_bytes,
        "cpu_percent": host.cpu_percent,
        "memory_stalled_percent": None if stall is None else stall.some_avg10_percent,
    }
    return {f"host.{name}": float(value) for name, value in values.items() if value is not None}


def _gpu(gpu: Gpu) -> dict[str, float]:
    if gpu.uuid is None:
        return {}
    values = {name: getattr(gpu, name) for name in _OF_GPU}
    return {f"gpu.{gpu.uuid}.{n}": float(value) for n, value in values.items() if value is not None}
