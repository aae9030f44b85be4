"""Runs the scheduler on the jobs in the queue.

The scheduler's input is made job by job, so that invalid data of one job holds only that
job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue import clocks, fault_isolation, time_limit
from zerotoolsd.queue.expected_memory import ExpectedOfJobs
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.gpu_fault_fences import with_fences
from zerotoolsd.queue.request_from_job_file import WATCHED_PRIORITY, host_bytes_of, request_of
from zerotoolsd.queue.rows import JobRow, Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import (
    NOTHING_DECLARED,
    DeclaredMemory,
    HostMemoryNow,
)
from zerotoolsd.queue.scheduling.pass_input import PassInput, RunningJob
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request
from zerotoolsd.queue.scheduling.scheduler import PassDecisions, RequestError, run_pass
from zerotoolsd.queue.scheduling.suitable_gpus import by_number
from zerotoolsd.queue.scheduling.user_quota import ANYBODY, UserUsage, UserUse
from zerotoolsd.queue.store import Store
from zerotoolsd.users.user_limits import LimitsOfUsers

RankUsers = Callable[[Collection[int], float], Mapping[int, int]]
"""A function of (uids, now) that returns the rank of each user, from 0. A user without an entry
has the rank 0.
"""

LOOK_SECONDS = 0.01
"""Jobs are read for at most this many seconds before other tasks of the event loop run. Reading
10,000 jobs takes a second.
"""


@dataclass(frozen=True, kw_only=True)
class QueueUsers:
    """The users of the queue.

    `ranks` returns the order of the users, `quotas` contains the limits of each user, and `name`
    returns the name of a user, or None if messages need not name users.
    """

    ranks: RankUsers = lambda uids, now: {}
    quotas: LimitsOfUsers | None = None
    name: Callable[[int], str | None] = lambda uid: None


class QueuePlacement:
    """Keeps the pending jobs in order, and asks the scheduler which jobs start.

    This object follows the events of the store, so that each call reads only the changes since the
    last call.
    """

    def __init__(
        self,
        store: Store,
        job_guard: JobGuard,
        limits: LimitsConfig,
        grace_seconds: float = 0.0,
        memory: DeclaredMemory = NOTHING_DECLARED,
        users: QueueUsers | None = None,
        host_now: Callable[[], HostMemoryNow | None] = lambda: None,
    ) -> None:
        """Create the placement for the queue `store`.

        `memory` is the memory of the machine that can be divided among jobs. `host_now` returns the
        current use of host memory.
        """
        self._users = users or QueueUsers()
        self.closed: Callable[[], Mapping[str, str]] = dict
        """Returns the GPUs on which no job is started now: UUID to the reason."""
        self._host_now = host_now
        self._memory = memory
        self._expected = ExpectedOfJobs(store.attempts, memory.context)
        self.store = store
        self.guard = job_guard.guard
        self._grace = grace_seconds
        self._job_guard = job_guard
        self._limits = limits
        self.pending = PendingQueue()
        self._host_first: int | None = None
        """Position of the first job that waited for host memory at the last pass."""
        self._seen: int | None = None
        """Number of the newest event that was read; None if the queue was not read yet."""
        self._unread: dict[int, None] = {}
        """Jobs that must be read again, in order, because they may wait now or no longer wait."""
        self._unsettled: dict[int, None] = {}
        """Jobs that could neither be read nor be held. They are read again in the next round."""
        self._requests: dict[int, tuple[JobRow, Request]] = {}
        """Rows and requests of jobs that were just queued or edited, so that these need not be
        read again.
        """

    def cache_job(self, job: JobRow) -> None:
        """Keep `job`, which was just queued or edited, so that it is not read from the store."""
        self._requests.pop(job.id, None)
        self._expected.forget([job.id])
        request = self._request_of(job)
        if request is not None:
            self._requests[job.id] = job, request

    def catch_up(self, seconds: float = LOOK_SECONDS) -> bool:
        """Read the changes of the queue, for at most `seconds`. Return False if some changes
        are still unread.

        Jobs that cannot be read are held.
        """
        self._note_changes()
        deadline = time.monotonic() + seconds
        for job_id in list(self._unread):
            self._update_job(job_id)
            del self._unread[job_id]
            if time.monotonic() > deadline:
                break
        if self._unread:
            return False
        self._requests.clear()
        self._unread, self._unsettled = self._unsettled, {}
        return True

    def _note_changes(self) -> None:
        newest = self.store.last_change
        changed = None if self._seen is None else self.store.changed_since(self._seen)
        if changed is None:
            changed = [*self.pending, *self.store.ids(states.QUEUED)]
            self._expected.forget_all()
        self._expected.forget(changed)
        self._unread |= dict.fromkeys(changed)
        self._seen = newest

    def _update_job(self, job_id: int) -> None:
        if self.store.state(job_id) != states.QUEUED:  # or it was removed
            self.pending.remove(job_id)
            return
        job = self.store.job(job_id)
        known, request = self._requests.get(job_id, (None, None))
        is_other = known is None or known.spec_text != job.spec_text  # it was edited since
        if is_other or request is None or request.priority not in (job.priority, WATCHED_PRIORITY):
            request = self._request_of(job)
        self.pending.remove(job_id)  # if it waited already, it was changed
        if request is None:
            self._unsettled[job_id] = None
        else:
            self.pending.add(request)

    def _request_of(self, job: JobRow) -> Request | None:
        with self.guard(job.id, fault_isolation.NEEDING) as reach:
            reach()
            return request_of(job, self._grace, self._expected.of(job))
        return None

    def decide(
        self,
        snapshot: Snapshot | None,
        passed_over: Mapping[int, str] = MappingProxyType({}),
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        own: Mapping[str, int] = MappingProxyType({}),
        wishes: Collection[Request] = (),
    ) -> PassDecisions:
        """Return the scheduler's decisions (`run_pass`). A job with invalid data is held.

        `passed_over`, `elsewhere` and `own` are passed to `machine_now`. `wishes` are requests of
        running jobs for more resources; the granted wishes are among the starts in the result.
        """
        machine = self.machine_now(snapshot, passed_over, elsewhere, own, wishes)
        for wish in wishes:
            self.pending.add(wish)
        try:
            return self._decide(machine)
        finally:
            for wish in wishes:
                self.pending.remove(wish.job_id)

    def _decide(self, machine: PassInput) -> PassDecisions:
        while True:
            try:
                found = run_pass(
                    self.pending,
                    machine,
                    lambda job: self._job_guard.touch(job, fault_isolation.PLACING),
                )
                self._host_first = found.host_first
                return found
            except RequestError as odd:
                why = f"{fault_isolation.PLACING} failed"
                machine = replace(machine, passed_over={**machine.passed_over, odd.job_id: why})
                with self.guard(odd.job_id, fault_isolation.PLACING):
                    raise odd.__cause__ or odd from None

    def machine_now(
        self,
        snapshot: Snapshot | None,
        passed_over: Mapping[int, str] = MappingProxyType({}),
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        own: Mapping[str, int] = MappingProxyType({}),
        wishes: Collection[Request] = (),
    ) -> PassInput:
        """Return the input of a scheduler pass: the current state of the machine. Also update the
        order of users.

        `passed_over` and `elsewhere` are explained in `PassInput`, and `own` in `DeclaredMemory`.
        `wishes` are the requests of running jobs for more resources.
        """
        leases, now = self.store.leases(), time.time()
        if snapshot is not None:
            snapshot = with_fences(snapshot, self.store.fences(), clocks.read_clocks())
        self.pending.ranks = self._users.ranks(
            self.pending.uids | {wish.uid for wish in wishes}, now
        )
        running = self._running()
        used, host = sum(ranks for _, ranks, _ in running), sum(memory for *_, memory in running)
        there = self._host_now() if self.pending.wants_host else None
        expected = {job.id: size for job, _, size in running}
        free = None if there is None else there.left_after_growth(expected)
        waiting = (
            None if self._host_first is None else self.pending.need_and_order(self._host_first)
        )
        first = None if waiting is None else waiting[1]
        return PassInput(
            now=now,
            snapshot=snapshot,
            leases=leases,
            cpu_ranks_used=used,
            limits=self._limits,
            ends=self.ends_of({lease.job_id for lease in leases}, now),
            passed_over=passed_over,
            elsewhere=elsewhere,
            closed=self.closed(),
            memory=replace(self._memory, own=own, host_used=host, host_first=first, host_free=free),
            users=self._users_now(running, leases, {wish.job_id for wish in wishes}),
            named=self._job_text,
        )

    def _job_text(self, job_id: int) -> str:
        """Return a job as text with the name of its user, such as `job 1 (anna)`."""
        try:
            name = self._users.name(self.store.job(job_id).uid)
        except KeyError:  # it was removed
            name = None
        return by_number(job_id) if name is None else f"{by_number(job_id)} ({name})"

    def running_jobs(
        self, gpu_use: Mapping[tuple[int, int], Mapping[str, int]]
    ) -> list[RunningJob]:
        """Return the running and stopping jobs, each with the resources that become free when the
        job ends.

        `gpu_use` maps (job number, attempt number) to the used bytes of each GPU, keyed by UUID.
        Attempts with unknown use are left out.
        """
        now, found = clocks.read_clocks(), []
        for job, ranks, host in self._running():
            if job.state not in (states.RUNNING, states.STOPPING, *states.GIVING_WAY):
                continue
            attempt, spec = self.store.attempts(job.id)[-1], job.reading.spec
            found.append(
                RunningJob(
                    job_id=job.id,
                    uid=job.uid,
                    priority=job.priority,
                    cpu_ranks=ranks,
                    host_bytes=host,
                    gpu_use=gpu_use.get((job.id, attempt.number), {}),
                    ran_seconds=0.0 if attempt.began is None else now.seconds_since(attempt.began),
                    leaves=job.state != states.RUNNING,
                    can_shrink=spec is not None and (attempt.world_size or 0) > spec.world_size,
                )
            )
        return found

    def expected_of_gpu(self, job_id: int) -> int:
        """Return the expected memory of the job on each GPU, in bytes; 0 if unknown."""
        with self.guard(job_id, fault_isolation.COUNTING) as reach:
            reach()
            return self._expected.of(self.store.job(job_id)).gpu_bytes
        return 0

    def expected_of_running(self) -> dict[int, int]:
        """Return the declared or expected host memory of each running job: job number -> bytes."""
        return {job.id: size for job, _, size in self._running()}

    def ends_of(self, job_ids: set[int], now: float) -> dict[int, float]:
        """Return the time by which each job in `job_ids` with a time limit must have ended: job
        number -> seconds since the epoch.
        """
        found = {}
        for job_id in job_ids:
            with self.guard(job_id, fault_isolation.COUNTING) as reach:
                reach()
                spec, attempts = self.store.job(job_id).reading.spec, self.store.attempts(job_id)
                left = time_limit.seconds_left(spec, attempts, clocks.read_clocks())
                if left is not None:
                    found[job_id] = now + left + self._grace
        return found

    def _running(self) -> list[tuple[JobRow, int, int]]:
        """Return the row, the CPU ranks, and the host memory in bytes of each running job."""
        held = self.store.jobs_with_open_attempts(states.HELD)
        jobs = (*self.store.jobs(states.ACTIVE), *held)
        return [(job, *self._used_by(job)) for job in jobs]

    def _users_now(
        self,
        running: Sequence[tuple[JobRow, int, int]],
        leases: Sequence[Lease],
        again: Collection[int],
    ) -> UserUsage:
        """Return the resources that each user uses now, and the limits of each user.

        `again` are running jobs that ask for more resources. They do not count as running jobs,
        because otherwise they would be counted twice.
        """
        quotas = self._users.quotas
        if quotas is None or not quotas.bound_running:
            return ANYBODY
        gpus = Counter(lease.job_id for lease in leases)
        used: dict[int, UserUse] = {}
        for job, ranks, _ in running:
            before = used.get(job.uid, UserUse())
            after = before.plus_job(gpus=gpus[job.id], cpu_ranks=ranks)
            used[job.uid] = replace(after, running=after.running - (job.id in again))
        return UserUsage(limits_of=quotas.of, used=used)

    def cpu_ranks_of(self, job: JobRow) -> int:
        """Return the number of CPU ranks that `job` uses; 0 if it uses GPUs."""
        return self._used_by(job)[0]

    def _size_now(self, job: JobRow, spec: JobSpec) -> int:
        if spec.size_range is None:
            return spec.world_size
        attempts = self.store.attempts(job.id)
        return (attempts[-1].world_size if attempts else None) or spec.world_size

    def _used_by(self, job: JobRow) -> tuple[int, int]:
        with self.guard(job.id, fault_isolation.COUNTING) as reach:
            reach()
            spec = job.reading.spec
            if spec is not None:
                if spec.backend == SLURM:
                    return 0, 0
                takes_cpus = spec.device == "cpu" and spec.script.process is None
                ranks = self._size_now(job, spec) if takes_cpus else 0
                return ranks, host_bytes_of(spec, self._expected.of(job))
        return 0, 0
