"""Lets running jobs yield to a waiting one of higher priority, if the administrator allows it.

It also records when that job took its first step, so that the cost is known.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from zerotools.jobs import states
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.config.config_tables import PreemptionConfig
from zerotoolsd.dispatch.preemption.choose_victims import (
    MakesRoom,
    PreemptionRules,
    next_look,
    who_makes_room,
)
from zerotoolsd.dispatch.preemption.savable import why_not_saved
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.placement import QueuePlacement
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import PREEMPT, YieldAsk
from zerotoolsd.resources.gpu_sharing.over_use import SharedGpus

log = logging.getLogger(__name__)

ENDED_SECONDS = 60.0
"""Seconds after a job's end until its first step is no longer looked up."""

GiveWay = Callable[[JobRow, YieldAsk, str], None]


class PriorityPreemption:
    """After each pass that starts nothing."""

    def __init__(
        self,
        *,
        store: Store,
        placement: QueuePlacement,
        shared: SharedGpus,
        config: PreemptionConfig,
        guard: Guard,
        give_way: GiveWay,
    ) -> None:
        self._store = store
        self._placement = placement
        self._shared = shared
        self._enabled = config.enabled
        self._rules = PreemptionRules(
            after_seconds=config.after_seconds, own_only=config.among == "own"
        )
        self._guard = guard
        self._give_way = give_way

    def go(
        self,
        snapshot: Snapshot | None,
        passed_over: Mapping[int, str],
        elsewhere: Mapping[str, str],
        own: Mapping[str, int],
    ) -> float:
        """Run one round after a pass with these arguments that started nothing.

        Returns the seconds until another job may be asked.
        """
        if not self._enabled or not self._can_help():
            return math.inf
        measured = self._shared.use_of_jobs(snapshot)
        running = self._placement.running_jobs(measured.of_attempts)
        machine = self._placement.machine_now(snapshot, passed_over, elsewhere, own)
        line = self._placement.line
        for each in who_makes_room(line, machine, running, self._rules, self._saves):
            with self._guard(each.job_id, fault_isolation.STOPPING) as reach:
                reach()
                self._ask_one(each)
        return next_look(running, self._rules)

    def _can_help(self) -> bool:
        """Return whether any waiting job has a higher priority than a running one."""
        highest = self._placement.line.highest_priority
        running = self._store.jobs([states.RUNNING])
        return highest is not None and any(job.priority < highest for job in running)

    def _saves(self, job_id: int) -> bool:
        with self._guard(job_id, fault_isolation.STOPPING) as reach:
            reach()
            return why_not_saved(self._store.job(job_id), self._store.attempts(job_id)) is None
        return False

    def _ask_one(self, each: MakesRoom) -> None:
        job = self._store.job(each.job_id)
        why = f"stops for job {each.for_job} of priority {each.priority}"
        try:
            self._give_way(job, YieldAsk(purpose=PREEMPT, for_job=each.for_job), why)
        except NotAllowed:  # it has ended meanwhile
            log.info("job %d has already released its resources", each.job_id)

    def note_first_steps(self) -> None:
        """Record the first steps of jobs for which others yielded."""
        for row in self._store.yields.unanswered(time.time() - ENDED_SECONDS):
            asked_for = row.for_job or 0
            with self._guard(
                asked_for, fault_isolation.COUNTING
            ) as reach:  # reads that job's files
                reach()
                when = self._first_step(asked_for, row.asked)
                if when is not None:
                    self._store.yields.note_first_step(row, when)

    def _first_step(self, job_id: int, asked: float) -> float | None:
        attempts = self._store.attempts(job_id)
        if not attempts or (attempts[-1].started or 0.0) < asked:
            return None
        first = last_report.first_step_time(Path(attempts[-1].run_dir))
        return None if first is None else min(max(first, asked), time.time())
