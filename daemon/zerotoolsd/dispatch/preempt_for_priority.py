"""Asks running jobs to save and end so that a waiting job of higher priority can start, if the
administrator allows it.

The module also records when the waiting job has done its first step. The cost of the preemption is
computed from this time.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.jobs import states
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.attempts import last_report
from zerotoolsd.config.config_tables import PreemptionConfig
from zerotoolsd.dispatch.end_jobs_for_memory import why_not_saved
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement
from zerotoolsd.queue.scheduling.pass_input import PassInput, RunningJob
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import (
    Request,
    ResourceNeed,
    order_of,
    priority_of,
    request_at,
)
from zerotoolsd.queue.scheduling.scheduler import run_pass
from zerotoolsd.queue.tables.preemption_table import PREEMPT, YieldAsk
from zerotoolsd.resources.check_gpu_use_of_jobs import SharedGpus

log = logging.getLogger(__name__)

ENDED_SECONDS = 60.0
"""Seconds after the end of a job for which its first step is still searched."""

GiveWay = Callable[[JobRow, YieldAsk, str], None]


class PriorityPreemption:
    """Asks running jobs to save and end for jobs of higher priority, after each scheduler pass
    that starts nothing.
    """

    def __init__(
        self,
        *,
        placement: QueuePlacement,
        shared: SharedGpus,
        config: PreemptionConfig,
        give_way: GiveWay,
    ) -> None:
        self._placement = placement
        self._shared = shared
        self._enabled = config.enabled
        self._rules = PreemptionRules(
            after_seconds=config.after_seconds, own_only=config.among == "own"
        )
        self._give_way = give_way

    def preempt(
        self,
        snapshot: Snapshot | None,
        passed_over: Mapping[int, str],
        elsewhere: Mapping[str, str],
        own: Mapping[str, int],
    ) -> float:
        """Choose running jobs and ask them to save and end. The arguments are the same as for the
        scheduler pass, which started no job.

        Return the seconds until another job may be asked.
        """
        if not self._enabled or not self._can_help():
            return math.inf
        measured = self._shared.use_of_jobs(snapshot)
        running = self._placement.running_jobs(measured.of_attempts)
        machine = self._placement.machine_now(snapshot, passed_over, elsewhere, own)
        pending = self._placement.pending
        for each in choose_victims(pending, machine, running, self._rules, self._saves):
            with self._placement.guard(each.job_id, fault_isolation.STOPPING) as reach:
                reach()
                self._ask_one(each)
        return seconds_to_next_check(running, self._rules)

    def _can_help(self) -> bool:
        """Return whether any waiting job has a higher priority than any running job."""
        highest = self._placement.pending.highest_priority
        running = self._placement.store.jobs([states.RUNNING])
        return highest is not None and any(job.priority < highest for job in running)

    def _saves(self, job_id: int) -> bool:
        with self._placement.guard(job_id, fault_isolation.STOPPING) as reach:
            reach()
            return (
                why_not_saved(
                    self._placement.store.job(job_id), self._placement.store.attempts(job_id)
                )
                is None
            )
        return False

    def _ask_one(self, each: PreemptionRequest) -> None:
        job = self._placement.store.job(each.job_id)
        why = f"stops for job {each.for_job} of priority {each.priority}"
        try:
            self._give_way(job, YieldAsk(purpose=PREEMPT, for_job=each.for_job), why)
        except NotAllowed:  # it has ended meanwhile
            log.info("job %d has already released its resources", each.job_id)

    def note_first_steps(self) -> None:
        """Record when each job did its first step on resources that other jobs yielded to it."""
        for row in self._placement.store.yields.unanswered(time.time() - ENDED_SECONDS):
            asked_for = row.for_job or 0
            with self._placement.guard(
                asked_for, fault_isolation.COUNTING
            ) as reach:  # reads that job's files
                reach()
                when = self._first_step(asked_for, row.asked)
                if when is not None:
                    self._placement.store.yields.note_first_step(row, when)

    def _first_step(self, job_id: int, asked: float) -> float | None:
        attempts = self._placement.store.attempts(job_id)
        if not attempts or (attempts[-1].started or 0.0) < asked:
            return None
        first = last_report.first_step_time(Path(attempts[-1].run_dir))
        return None if first is None else min(max(first, asked), time.time())


MOST_LOOKED_AT = 8


@dataclass(frozen=True, kw_only=True)
class PreemptionRequest:
    """A decision: the job `job_id` must save and free its resources for the job `for_job`,
    which has the priority `priority`.
    """

    job_id: int
    for_job: int
    priority: int


@dataclass(frozen=True, kw_only=True)
class PreemptionRules:
    """The administrator's limits for preemption.

    An attempt must have been running for `after_seconds`. With `own_only`, it must belong to
    the same user as the waiting job.
    """

    after_seconds: float
    own_only: bool = False

    def allow(self, job: RunningJob, request: Request) -> bool:
        """Return whether the running `job` may be asked to end for the waiting job of `request`."""
        return (
            not job.leaves
            and request.need.world_size > 0  # a watched process needs no resources
            and job.priority < request.priority
            and job.ran_seconds >= self.after_seconds
            and (not self.own_only or job.uid == request.uid)
        )


def choose_victims(
    pending: PendingQueue,
    machine: PassInput,
    running: Sequence[RunningJob],
    rules: PreemptionRules,
    saves: Callable[[int], bool],
) -> list[PreemptionRequest]:
    """Return the running jobs that must save and end so that waiting jobs of higher priority can
    start.

    Only jobs that continue later from a saved state are chosen, that is, jobs for which `saves`
    returns True. Call this only if no job of `pending` can start on free resources.
    """
    asked: list[PreemptionRequest] = []
    leave = [job for job in running if job.leaves]
    lowest = min((job.priority for job in running if not job.leaves), default=None)
    if lowest is None:
        return []
    trial = PreemptionTrial(pending, machine)
    for request in _in_turn(pending, machine, lowest):
        if trial.set_current(request) or (leave and trial.is_free(leave)):
            continue
        may = [job for job in running if rules.allow(job, request) and job not in leave]
        chosen = trial.fewest(leave, sorted((x for x in may if saves(x.job_id)), key=_dearness))
        leave += chosen
        asked += [
            PreemptionRequest(job_id=job.job_id, for_job=request.job_id, priority=request.priority)
            for job in chosen
        ]
        if not chosen and trial.record_hopeless() == MOST_LOOKED_AT:
            break
    return asked


class PreemptionTrial:
    """Tests whether a waiting job could start after running jobs have freed their resources.

    Waiting jobs that come before it have already taken the resources that they can use.
    """

    def __init__(self, pending: PendingQueue, machine: PassInput) -> None:
        self._machine = machine
        self._before = PendingQueue()
        self._before.ranks = pending.ranks
        self._now: Request | None = None
        self._hopeless: set[tuple[ResourceNeed, int]] = set()

    def set_current(self, request: Request) -> bool:
        """Make the job of `request` the current job. Return True if it is already known that no
        preemption helps jobs of this user with this need.
        """
        self._now = request
        self._before.add(request)
        return (request.need, request.uid) in self._hopeless

    def record_hopeless(self) -> int:
        """Record that no preemption helps jobs with the need and the user of the current job.
        Return the number of such pairs (need, user) so far.
        """
        assert self._now is not None
        self._hopeless.add((self._now.need, self._now.uid))
        return len(self._hopeless)

    def is_free(self, gone: Sequence[RunningJob]) -> bool:
        """Return whether the current job could start if the jobs `gone` freed their resources."""
        assert self._now is not None
        decisions = run_pass(self._before, self._machine.without(gone))
        return any(start.job_id == self._now.job_id for start in decisions.starts)

    def fewest(self, leave: Sequence[RunningJob], jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """Return the cheapest jobs among `jobs` that must end, in addition to `leave`, so that the
        current job can start.

        `jobs` are sorted by cost. Return an empty list if the current job could not start even if
        all `jobs` ended.
        """
        if not jobs or not self.is_free([*leave, *jobs]):
            return []
        chosen: list[RunningJob] = []
        for job in jobs:
            chosen.append(job)
            if self.is_free([*leave, *chosen]):
                break
        for job in reversed(chosen[:-1]):
            fewer = [each for each in chosen if each is not job]
            if self.is_free([*leave, *fewer]):
                chosen = fewer
        return chosen


def seconds_to_next_check(running: Sequence[RunningJob], rules: PreemptionRules) -> float:
    """Return the seconds until another attempt will have been running for `after_seconds`; infinity
    if there is no such attempt.
    """
    left = [rules.after_seconds - job.ran_seconds for job in running if not job.leaves]
    return min((seconds for seconds in left if seconds > 0), default=float("inf"))


def _dearness(job: RunningJob) -> tuple[int, bool, float, int]:
    return job.priority, not job.can_shrink, job.ran_seconds, -job.job_id


def _in_turn(pending: PendingQueue, machine: PassInput, lowest: int) -> Iterator[Request]:
    """Yield the requests of waiting jobs with a priority above `lowest`, in their order.

    For each pair (need, user), at most as many requests are yielded as the machine could start.
    """
    gpus = 0 if machine.snapshot is None else sum(not gpu.excluded for gpu in machine.snapshot.gpus)
    most = 1 + max(gpus, machine.limits.cpu_ranks)
    groups = [*pending.groups(gpus=True), *pending.groups(gpus=False)]
    ranks = [pending.rank(group) for group in groups]
    heads = [
        (order_of(group.user_orders[0], ranks[number]), 0, number)
        for number, group in enumerate(groups)
    ]
    heapq.heapify(heads)
    while heads:
        _, place, number = heapq.heappop(heads)
        group, user_order = groups[number], groups[number].user_orders[place]
        if priority_of(user_order) <= lowest:
            return
        if place + 1 < min(most, len(group.user_orders)):
            order = order_of(group.user_orders[place + 1], ranks[number])
            heapq.heappush(heads, (order, place + 1, number))
        request = request_at(user_order, group.need, group.lasts(place), group.uid)
        if request.job_id not in machine.passed_over:
            yield request
