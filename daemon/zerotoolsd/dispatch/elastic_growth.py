"""Restarts running elastic jobs with more GPUs when GPUs are free.

Example: job 7 has 2 of 4 GPUs, and the job with the other two ends. In the next pass of the
scheduler, job 7 requests 2 more GPUs, after all waiting jobs. If the request is granted, job 7 is
asked to save and end. Until its attempt has ended, each pass reserves the 2 GPUs for job 7, at its
own position in the queue, so that no job behind it gets these GPUs. Then job 7 is queued, and the
next pass starts it with its largest possible size: 4. The queue stores only that job 7 yields. A
restarted daemon makes the same request again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.priority_range import LEAST_PRIORITY
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.config.config_tables import ElasticConfig
from zerotoolsd.queue import clocks, fault_isolation, time_limit
from zerotoolsd.queue.clocks import seconds_in
from zerotoolsd.queue.request_from_job_file import request_of
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.scheduling.resource_requests import Request
from zerotoolsd.queue.scheduling.scheduler import Start
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import RESIZE, YieldAsk, YieldRow

GiveWay = Callable[[JobRow, YieldAsk, str], None]


@dataclass(frozen=True, kw_only=True)
class GrowthRequests:
    """The requests of running jobs for more resources in a scheduler pass.

    `wait` is the number of seconds until another job may ask for more.
    """

    requests: Sequence[Request] = ()
    wait: float | None = None

    @property
    def wants_gpus(self) -> bool:
        """Return whether any of the requests asks for GPUs."""
        return any(each.need.gpus is not None for each in self.requests)

    @property
    def ids(self) -> set[int]:
        """Return the numbers of the jobs with a request."""
        return {each.job_id for each in self.requests}


class ElasticGrowth:
    """Decides which running elastic jobs restart with more resources, and asks them to restart."""

    def __init__(
        self, store: Store, config: ElasticConfig, guard: Guard, give_way: GiveWay
    ) -> None:
        self._store = store
        self._config = config
        self._rule = GrowthRule(after_seconds=config.after_seconds, factor=config.gain)
        self._guard = guard
        self._give_way = give_way

    def collect_requests(self) -> GrowthRequests:
        """Return the requests of running jobs for more resources, for the next scheduler pass."""
        requests: list[Request] = []
        waits: list[float] = []
        if not self._config.grow:
            return GrowthRequests()
        for job in self._store.jobs([states.RUNNING, states.YIELDING]):
            spec = job.reading.spec
            if spec is None or len(spec.sizes) < 2:
                continue
            with self._guard(job.id, fault_isolation.NEEDING) as reach:
                reach()
                keeps = job.state == states.YIELDING
                size = self._store.attempts(job.id)[-1].world_size
                sizes = (
                    self._sizes_of_yielding(job) if keeps else self._sizes_of_running(job, waits)
                )
                if sizes and size is not None:
                    requests.append(growth_request(request_of(job), size, sizes, keeps=keeps))
        return GrowthRequests(requests=requests, wait=min(waits, default=None))

    def _sizes_of_running(self, job: JobRow, waits: list[float]) -> tuple[int, ...]:
        found = self._growth(job)
        if found is None:
            return ()
        if found.wait is not None:
            waits.append(found.wait)
        return found.sizes

    def _sizes_of_yielding(self, job: JobRow) -> tuple[int, ...]:
        """Return the larger sizes that the job may get, if it already saves in order to grow."""
        attempt, rows = self._store.attempts(job.id)[-1], self._store.yields.of(job.id)
        if not rows or (rows[-1].attempt, rows[-1].purpose) != (attempt.number, RESIZE):
            return ()
        return tuple(size for size in job.spec.sizes if size > (attempt.world_size or 0))

    def request_resize(self, given: Sequence[Start]) -> None:
        """Ask the running jobs in `given`, which got more resources in the pass, to save and end.
        They start again with more ranks.
        """
        for start in given:
            with self._guard(start.job_id, fault_isolation.STOPPING) as reach:
                reach()
                job = self._store.job(start.job_id)
                now = self._running_size(job)
                # It may have ended meanwhile, or have a part of the same GPU already.
                if job.state != states.RUNNING or now is None or self._shares(start):
                    continue
                why = why_it_grows(now, now.size + _ranks_of(start, job, now))
                self._give_way(job, YieldAsk(purpose=RESIZE), why)

    def _shares(self, start: Start) -> bool:
        attempt = self._store.attempts(start.job_id)[-1]
        return not set(attempt.gpu_uuids).isdisjoint(start.gpu_uuids)

    def why(self, job: JobRow) -> str | None:
        """Return a sentence that says whether the job gets more ranks, and why, with numbers.

        Return None if the job is not elastic or is not running.
        """
        if job.state != states.RUNNING or job.reading.spec is None:
            return None
        if len(job.reading.spec.sizes) < 2:
            return None
        if not self._config.grow:
            return "keeps the size that it started with: elastic.grow = false"
        found = self._growth(job)
        return None if found is None else found.why

    def _growth(self, job: JobRow) -> Growth | None:
        now = self._running_size(job)
        return None if now is None else decide_growth(now, job.spec.sizes, self._rule)

    def _running_size(self, job: JobRow) -> RunningSize | None:
        attempt = self._store.attempts(job.id)[-1]
        if attempt.world_size is None or attempt.began is None:
            return None
        step = last_report.last_report(attempt).step or {}
        return RunningSize(
            size=attempt.world_size,
            ran_seconds=clocks.read_clocks().seconds_since(attempt.began),
            left=self._seconds_left(job, step),
            cost=self._cost(attempt, step),
        )

    def _seconds_left(self, job: JobRow, step: Mapping[str, Any]) -> float | None:
        left, attempts = seconds_in(step, "seconds_left"), self._store.attempts(job.id)
        limit = time_limit.seconds_left(job.reading.spec, attempts, clocks.read_clocks())
        return left if left is None or limit is None else max(0.0, min(left, limit))

    def _cost(self, attempt: AttemptRow, step: Mapping[str, Any]) -> float:
        """Return the cost of a restart with another number of ranks, in seconds.

        The cost is the duration of the newest save plus the time from the start of this attempt to
        its first step. If one of these times was not measured, the cost is at least
        `change_seconds`.
        """
        rows = self._store.yields.of(attempt.job_id)
        start_up = _start_up_seconds(attempt, step)
        if start_up is None or (saving := _saving_seconds(rows)) is None:
            return max(self._config.change_seconds, start_up or 0.0)
        return saving + start_up


def _ranks_of(start: Start, job: JobRow, now: RunningSize) -> int:
    """Return how many ranks the job gets in addition, according to `start`. If `start` does not say
    this, return how many the next larger size needs.
    """
    if start.size is not None or start.gpu_uuids:
        return start.size or len(start.gpu_uuids)
    return min(size for size in job.spec.sizes if size > now.size) - now.size


def _saving_seconds(rows: Sequence[YieldRow]) -> float | None:
    """Return the seconds from the job's last request to save until the attempt's end, or None."""
    ended = [max(0.0, row.ended - row.asked) for row in rows if row.ended is not None]
    return ended[-1] if ended else None


def _start_up_seconds(attempt: AttemptRow, step: Mapping[str, Any]) -> float | None:
    """Return the seconds from the start of the attempt to its first step; None if unknown.

    The time is estimated from the last step: all steps are assumed to take as long as the last one.
    """
    when, each, reached = (seconds_in(step, key) for key in ("time", "step_seconds", "step"))
    if when is None or each is None or reached is None or attempt.started is None:
        return None
    begun = attempt.resumed_from
    first = 0 if begun is None else find_job_checkpoints.step_of(PurePath(begun).name)
    if first is None:
        return None
    return max(0.0, when - attempt.started - (reached - first) * each)


@dataclass(frozen=True, kw_only=True)
class GrowthRule:
    """The settings that decide when a job restarts with more ranks.

    The attempt must have been running for `after_seconds`. The time that more ranks would
    save must be at least `factor` times the cost of the restart.
    """

    after_seconds: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class RunningSize:
    """A running elastic job with `size` ranks. Its attempt has been running for `ran_seconds`.

    `left` is the time in seconds that the job still needs with `size` ranks (None: unknown). `cost`
    is the duration of a restart with more ranks, in seconds.
    """

    size: int
    ran_seconds: float
    left: float | None
    cost: float

    def gain(self, size: int) -> float:
        """Return how many seconds earlier the job would end with `size` ranks, without regard
        to the cost of the restart.
        """
        return (self.left or 0.0) * (1 - self.size / size)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The larger numbers of ranks that a job should ask for, in ascending order, and the reason. If
    the job should not grow, `sizes` is empty.

    `wait` is the number of seconds until the next check; None: check again when the queue
    changes.
    """

    sizes: tuple[int, ...]
    why: str
    wait: float | None = None


def decide_growth(now: RunningSize, sizes: tuple[int, ...], rule: GrowthRule) -> Growth:
    """Return the numbers of ranks, among `sizes`, that the job should ask for, and the reason."""
    more = tuple(size for size in sizes if size > now.size)
    ranks = count_text(now.size, "rank")
    if not more:
        return Growth(sizes=(), why=f"has {ranks}, its maximum")
    if now.ran_seconds < rule.after_seconds:
        wait = rule.after_seconds - now.ran_seconds
        why = (
            f"keeps its {ranks} for {wait:.0f} s more: an attempt runs for at least "
            f"{rule.after_seconds:.0f} s (elastic.after_seconds)"
        )
        return Growth(sizes=(), why=why, wait=wait)
    if now.left is None:
        return Growth(sizes=(), why=f"keeps its {ranks}: its remaining time is not known")
    worth = tuple(size for size in more if now.gain(size) >= rule.factor * now.cost)
    if not worth:
        return Growth(
            sizes=(),
            why=(
                f"keeps its {ranks}: {more[-1]} ranks would save {now.gain(more[-1]):.0f} s of the "
                f"{now.left:.0f} s left; a change costs {now.cost:.0f} s, and must save at least "
                f"{rule.factor:g} times as much (elastic.gain)"
            ),
        )
    why = (
        f"has {ranks}, and takes {_either(worth)} as soon as no other job can use so many: "
        f"{worth[-1]} ranks would save {now.gain(worth[-1]):.0f} s of the {now.left:.0f} s left, "
        f"and a change costs {now.cost:.0f} s"
    )
    return Growth(sizes=worth, why=why)


def why_it_grows(now: RunningSize, size: int) -> str:
    """Return a sentence on a job that saves now in order to continue with `size` ranks."""
    return (
        f"grows from {now.size} to {size} ranks: that saves {now.gain(size):.0f} s of the "
        f"{now.left or 0.0:.0f} s left, and the change costs {now.cost:.0f} s"
    )


def growth_request(own: Request, size: int, sizes: tuple[int, ...], *, keeps: bool) -> Request:
    """Return the request of a running job with `size` ranks for one of `sizes`, which are
    larger numbers of ranks.

    The request comes after all waiting jobs in the pass. With `keeps` it has the normal
    position of the job.
    """
    more = tuple(each - size for each in sizes)
    need = replace(
        own.need,
        world_size=more[0],
        gpus=None if own.need.gpus is None else more[0],
        host_bytes=0,  # the job has it
        sizes=more,
    )
    priority = own.priority if keeps else LEAST_PRIORITY - 1
    return replace(own, need=need, lasts=None, priority=priority)


def _either(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))
