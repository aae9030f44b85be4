"""A scheduling pass alone, over a queue in a store of its own and GPUs that are only told of."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.daemon import JOB
from harness.fake_gpu_probe import fake_gpu
from zerotools.jobs.client.queue_backup import DATABASE
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import Host, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig, SharesConfig
from zerotoolsd.dispatch.preempt_for_priority import PreemptionRules, choose_victims
from zerotoolsd.interface.start_conditions import ANY, Dependency
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.check_start_conditions import WaitingConditions
from zerotoolsd.queue.clocks import read_clocks
from zerotoolsd.queue.fair_share import UsageReport
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.lifecycle import JobStatus, RetryPolicy
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement, QueueUsers
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import NewJob

GPUS = 8
RUNNING = 6
"""Of the GPUs, those that jobs hold; the others are kept for the first that waits."""
PASSES = 100
ROOM = PreemptionRules(after_seconds=0.0)


@dataclass(frozen=True)
class Passes:
    """Milliseconds: reading the queue, passes with nothing new, and passes after a change."""

    reading: float
    at_rest: list[float]
    after_a_change: list[float]
    needs: int

    def text(self) -> str:
        """One line."""
        found = self.after_a_change
        return (
            f"median {statistics.median(found):.2f} ms   most {max(found):.2f} ms of processor   "
            f"with nothing new {statistics.median(self.at_rest):.2f} ms   {self.needs} needs; "
            f"read once in {self.reading / 1e3:.2f} s"
        )


def cpu_job(number: int) -> JobSpec:
    """One that waits for CPU ranks."""
    return _job({"device": "cpu", "ranks": 1 + number % 4})


def gpu_job(number: int) -> JobSpec:
    """50 different needs: 8 numbers of GPUs, and 42 lists of them; two thirds have a time limit."""
    first, length = number % 50 % GPUS, number % 50 // GPUS
    listed = [(first + i) % GPUS for i in range(length)]
    limit = {"time_limit": f"{1 + number % 97}h"} if number % 3 else {}
    return _job({"gpus": listed or 1 + first, **limit})


def shared_job(number: int) -> JobSpec:
    """One that shares GPUs: 60 different needs of memory, on one or two of them."""
    declared = {"per_gpu": f"{1 + number % 30}GiB", "host": "1GiB"}
    return _job({"gpus": 1 + number // 30 % 2, "memory": declared})


def mixed_job(number: int) -> JobSpec:
    """A quarter of each of these, and a quarter elastic ones of 28 ranges."""
    makers = (cpu_job, gpu_job, shared_job, elastic_job)
    return makers[number % 4](number // 4)


def elastic_job(number: int) -> JobSpec:
    """Of each pair of sizes that divide 840."""
    pairs = [(least, most) for most in range(2, GPUS + 1) for least in range(1, most)]
    least, most = pairs[number % len(pairs)]
    train = {"steps": 1, "batch_size": 840}
    tree = {**JOB, "ranks": None, "device": "cuda", "gpus": {"min": least, "max": most}}
    return job_from_dict({**tree, "train": train}, source="job")


def _job(keys: dict[str, object]) -> JobSpec:
    script = {"command": ["sleep", "3600"], "directory": "/"}
    return job_from_dict({"engine": "script", "script": script, **keys}, source="job")


@contextmanager
def _queue(
    make: Callable[[int], JobSpec], jobs: int, users: int, dependent: int = 0
) -> Iterator[tuple[Store, QueuePlacement]]:
    with tempfile.TemporaryDirectory() as work:
        store = Store(Path(work))
        guard = JobGuard(Path(work), lambda job_id, why: None, lambda job_id, doing: None)
        numbers = range(RUNNING + jobs)
        store.submit_all([_new(make(number), number // 50 % users, number) for number in numbers])
        # Each of the first that wait is what many others wait for.
        store.submit_all(
            [
                _new(
                    make(number),
                    number // 50 % users,
                    number,
                    after=(Dependency(job_id=RUNNING + 1 + number % PASSES, condition=ANY),),
                )
                for number in range(RUNNING + jobs, RUNNING + jobs + dependent)
            ]
        )
        for number in range(RUNNING):
            _start(store, number)
        try:
            _use(Path(work), users)
            shares = UsageReport(store, SharesConfig())
            limits = LimitsConfig(cpu_ranks=2)
            yield store, QueuePlacement(store, guard, limits, users=QueueUsers(ranks=shares.ranks))
        finally:
            store.close()


def _use(state: Path, users: int) -> None:
    """A week in which each user has used something in every hour."""
    hour = int(time.time() // 3600)
    rows = [(uid, hour - ago, 60.0 * (1 + uid)) for uid in range(users) for ago in range(168)]
    with closing(sqlite3.connect(state / DATABASE)) as queue, queue:
        queue.executemany("INSERT INTO gpu_use (uid, hour, gpu_seconds) VALUES (?, ?, ?)", rows)


def _new(spec: JobSpec, uid: int, number: int, after: tuple[Dependency, ...] = ()) -> NewJob:
    """A job that waits, of one of three priorities; those that run have the highest."""
    return NewJob(
        priority=10 if number < RUNNING else number % 3,
        uid=uid,
        name="bench",
        spec=spec,
        output_dir=None,
        default_output=Path("/nowhere"),
        idempotency_key=None,
        now=1.0,
        after=after,
    )


def _start(store: Store, number: int) -> None:
    """Job `number + 1` runs, and holds a GPU."""
    job, gpu = store.job(number + 1), f"GPU-fake-{number}"
    attempt = AttemptRow(
        job_id=job.id,
        number=1,
        token=f"token-{number}",
        state="launching",
        run_dir="/nowhere",
        gpu_uuids=(gpu,),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )
    with store.change(job, JobStatus(state="launching"), "admit", now=1.0) as change:
        change.add_attempt(attempt)
    with store.change(store.job(job.id), JobStatus(state="running"), "started", now=1.0) as change:
        change.attempt_started(1, read_clocks())


def _snapshot() -> Snapshot:
    host = Host(
        memory_total_bytes=2**40,
        memory_available_bytes=2**40,
        memory_used_bytes=0,
        swap_total_bytes=0,
        swap_used_bytes=0,
        cpu_count=2,
        load_average=(0.0, 0.0, 0.0),
    )
    gpus = tuple(fake_gpu(index, used_gib=0) for index in range(GPUS))
    return Snapshot(
        taken_at=time.time(), host=host, gpus=gpus, gpus_error=None, gpus_age_seconds=0.0
    )


def measure_passes(
    make: Callable[[int], JobSpec],
    jobs: int,
    users: int = 1,
    *,
    preempts: bool = False,
    dependent: int = 0,
) -> Passes:
    """Passes as the dispatcher makes them, over `jobs` queued jobs of so many users. Nothing is
    started. `preempts`: the choice of those that make room, too. `dependent`: so many of the jobs
    wait for others among them; each change ends one that many wait for, and those come into the
    line in the same pass."""
    with _queue(make, jobs - dependent, users, dependent) as (store, placement):
        snapshot = _snapshot()
        guard = JobGuard(Path("/nowhere"), lambda job_id, why: None, lambda job_id, doing: None)
        transitions = StateChanger(store, RetryPolicy(), lambda: None)
        conditions = WaitingConditions(transitions, guard, time.time)

        def one_pass() -> float:
            began = time.thread_time()
            while dependent and conditions.settle() == 0.0:
                pass
            while not placement.catch_up():
                pass
            placement.decide(snapshot)
            if preempts:
                running = [replace(job, priority=-10) for job in placement.running_jobs({})]
                machine = placement.machine_now(snapshot)
                choose_victims(placement.pending, machine, running, ROOM, lambda job_id: True)
            return (time.thread_time() - began) * 1e3

        reading = one_pass()
        at_rest = [one_pass() for _ in range(PASSES)]
        changed = []
        for job_id in range(RUNNING + 1, RUNNING + 1 + PASSES):
            with store.change(store.job(job_id), JobStatus(state="cancelled"), "cancel", now=2.0):
                pass
            changed.append(one_pass())
        needs = len(placement.pending.groups(gpus=True)) + len(placement.pending.groups(gpus=False))
    return Passes(reading, at_rest, changed, needs)
