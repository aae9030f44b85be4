"""The loop that looks at the host's memory, and does what the ladder says."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.jobs import states
from zerotools.runs import checkpoint_dirs
from zerotools.sensors.cgroup_memory import headroom_bytes
from zerotools.sensors.host import HostSensor
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.giving_way.savable import why_not_saved
from zerotoolsd.attempts.watcher import Guard
from zerotoolsd.config_tables.pressure_config import NOTHING, PressureConfig
from zerotoolsd.pressure.forecast import LONG_SECONDS, MemorySample
from zerotoolsd.pressure.ladder import (
    HIGHEST,
    Act,
    Ladder,
    MemoryHolder,
    Rung,
    next_act,
    wanted_rung,
)
from zerotoolsd.queue import clocks, parking
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.scheduling.declared import HostNow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.yielding.yield_table import RELIEVE, YieldAsk

MOST = 1.5
"""So many times what is sure of an estimate is the most that is expected: it may be off by a
quarter."""
IDLE_SECONDS = 2.0
"""Between two looks while no job runs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostReading:
    """Bytes in all and available, and how long all tasks waited (PSI, percent), if it is known."""

    total: int
    available: int
    stalled_percent: float | None = None


def read_host() -> HostReading:
    """The host now, or what the daemon's control group leaves of it."""
    host = HostSensor().read()
    stall = host.pressure.memory if host.pressure else None
    available, room = host.memory_available_bytes, headroom_bytes()
    return HostReading(
        host.memory_total_bytes,
        available if room is None else min(available, room),
        None if stall is None else stall.full_avg10_percent,
    )


class PressureGuard:
    """Asks our own jobs alone. `live` gives the attempts that run, `host_now` what they hold,
    `expected` what they are expected to hold in all, by job; `give_way` asks a job to save and
    stop, `end` leaves an attempt that was asked no more time."""

    def __init__(
        self,
        store: Store,
        config: PressureConfig,
        guard: Guard,
        live: Callable[[], Sequence[AttemptRow]],
        host_now: Callable[[], HostNow],
        expected: Callable[[], Mapping[int, int]],
        give_way: Callable[[JobRow, YieldAsk, str], None],
        end: Callable[[AttemptRow, str], None],
        wake: Callable[[], None],
        read: Callable[[], HostReading] = read_host,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._config, self._guard = store, config, guard
        self._live, self._host_now, self._expected = live, host_now, expected
        self._give_way, self._end, self._wake = give_way, end, wake
        self._read, self._clock = read, clock
        self._samples: deque[MemorySample] = deque(maxlen=int(LONG_SECONDS / config.seconds) + 2)
        self._ladder = Ladder()
        self._asked: dict[str, float] = {}
        """When each attempt was asked, by token."""
        self._ended: dict[str, float] = {}

    @property
    def why_none_starts(self) -> str | None:
        """Why no job starts now; None: jobs start."""
        if min(self._ladder.rung, HIGHEST[self._config.most]) < Rung.WAIT:
            return None
        return f"no job starts while the memory of the host runs out: {self._ladder.why}"

    async def keep_up(self) -> None:
        """Look until cancelled."""
        if self._config.most == NOTHING:
            return
        while True:
            try:
                self.look()
            except sqlite3.OperationalError as error:
                log.error("the queue cannot be written now: %s", error)
            except Exception:  # of memory, or a defect: the next look is another one
                log.exception("the memory of the host cannot be looked at now")
            busy = self._live() or self._ladder.rung
            await asyncio.sleep(self._config.seconds if busy else IDLE_SECONDS)

    def look(self) -> None:
        """One look, and what follows from it."""
        live, now, found = self._live(), self._clock(), self._read()
        sample = MemorySample(
            now, found.total, found.available, stalled_percent=found.stalled_percent
        )
        self._samples.append(sample)
        if wanted_rung(self._samples)[0]:  # what is expected of jobs is looked up only then
            self._samples[-1] = self._explained(sample, live)
        before, self._ladder = self._ladder, self._ladder.after(self._samples)
        if (before.rung >= Rung.WAIT) != (self._ladder.rung >= Rung.WAIT):
            log.warning("%s", self.why_none_starts or "the memory of the host is enough again")
            self._wake()
        running = {attempt.token for attempt in live}
        for told in (self._asked, self._ended):
            for token in told.keys() - running:
                del told[token]
        wanted = min(self._ladder.wanted, HIGHEST[self._config.most])
        if wanted >= Rung.SAVE and live:
            act = next_act(wanted, self._holders(live, now), found.total, now)
            if act is not None:
                self._do(act, live, now)

    def _explained(self, sample: MemorySample, live: Sequence[AttemptRow]) -> MemorySample:
        """With what jobs are expected to take."""
        expected = {job: size for job, size in self._expected().items() if size}
        if not expected:
            return sample
        held = self._host_now().held
        coming = sum(max(0, size - held.get(job, 0)) for job, size in expected.items())
        below = {job for job, size in expected.items() if held.get(job, 0) < MOST * size}
        loads = (each for each in live if each.job_id in below)
        loading = any(last_report.report_so_far(Path(each.run_dir)).step is None for each in loads)
        return replace(sample, coming=coming, loading=loading)

    def _holders(self, live: Sequence[AttemptRow], now: float) -> list[MemoryHolder]:
        held, found = self._host_now().held, []
        for attempt in live:
            with self._guard(attempt.job_id, parking.COUNTING) as reach:
                reach()
                job = self._store.job(attempt.job_id)
                spec = job.reading.spec
                watches = spec is not None and spec.script.process is not None
                if watches or job.state not in _MAY_BE_ASKED:
                    continue
                found.append(
                    MemoryHolder(
                        job_id=job.id,
                        priority=job.priority,
                        held=held.get(job.id, 0),
                        unsaved_seconds=unsaved_seconds(attempt, clocks.now()),
                        saves=why_not_saved(job, self._store.attempts(job.id)) is None,
                        asked=self._asked.get(attempt.token),
                        ended=self._ended.get(attempt.token),
                    )
                )
        return found

    def _do(self, act: Act, live: Sequence[AttemptRow], now: float) -> None:
        attempt = next(each for each in live if each.job_id == act.job_id)
        with self._guard(act.job_id, parking.STOPPING) as reach:
            reach()
            job = self._store.job(act.job_id)
            if attempt.token not in self._asked:
                self._asked[attempt.token] = now
                why = f"makes room as the memory of the host runs out: {self._ladder.why}"
                log.warning("job %d %s", job.id, why)
                try:
                    if job.state not in states.GIVING_WAY:  # else it saves already, for another
                        self._give_way(job, YieldAsk(purpose=RELIEVE), why)
                except NotAllowed:  # it has ended meanwhile
                    log.info("job %d has ended already", job.id)
                    return
            if act.at_once:
                self._ended[attempt.token] = now
                log.warning("job %d is ended at once: %s", job.id, self._ladder.why)
                self._end(attempt, RELIEVE)


_MAY_BE_ASKED = (states.RUNNING, *states.GIVING_WAY)


def unsaved_seconds(attempt: AttemptRow, now: Moment) -> float:
    """The work that the attempt has done since it saved last, or began where that is later; all of
    its time, where its steps or how long they take are not known."""
    report = last_report.report_so_far(Path(attempt.run_dir))
    step = report.step or {}
    done, each = step.get("step"), step.get("step_seconds")
    if type(done) is int and isinstance(each, int | float) and 0 <= each < math.inf:
        begun = checkpoint_dirs.step_of(Path(attempt.resumed_from or "").name) or 0
        return max(0, done - max(report.checkpoint_step or 0, begun)) * float(each)
    return 0.0 if attempt.began is None else max(0.0, now.seconds_since(attempt.began))
