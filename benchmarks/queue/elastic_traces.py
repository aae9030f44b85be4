"""What elastic jobs gain over two simulated days of a lab's queue, beside the same jobs rigid.

    python -m benchmarks.queue.elastic_traces [--seeds 10]

The scheduler is the daemon's own (`tick`), as are the rule by which jobs grow (`growth`, `wish`)
and the choice of those that make room (`who_makes_room`): only time, GPUs and jobs are told of. On
8 GPUs there are two kinds of jobs, which come at random (Poisson processes) with log-normal
lengths:

short   1 GPU (70 %) or 2 (30 %), 0.75 hours in the median (sigma 0.8)
long    24 GPU-hours in the median (sigma 0.6)

A quiet lab has 30 short and 3 long ones a day, a busy one 60 and 4. Rigid, a long job asks for 4
GPUs. Elastic, it may have 1, 2, 3, 4, 6 or 8 (`batch_size` 48). "Preempted" and "shrinks" give
short jobs a higher priority, for which long ones make room. A start costs 60 s without progress,
and so does each change of size. On N GPUs a long job is N^0.95 times as fast as on one. All queues
get the same jobs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

from benchmarks.fair_share import HOUR
from benchmarks.measuring import machine
from zerotools.sensors.fake import fake_gpu
from zerotools.sensors.snapshot import Host, Snapshot
from zerotoolsd.config.daemon_config import LimitsConfig
from zerotoolsd.dispatch.preemption.choose_victims import PreemptionRules, who_makes_room
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.elastic_resize import GrowthRule, RunningSize, growth, wish
from zerotoolsd.queue.scheduling.pass_input import MachineNow, RunningJob
from zerotoolsd.queue.scheduling.pending_queue import WaitingLine
from zerotoolsd.queue.scheduling.requests import Request, ResourceNeed

GPUS, DAYS = 8, 2
UNTIL = DAYS * 24 * HOUR
SIZES, ASKED = (1, 2, 3, 4, 6, 8), 4
LABS = {"quiet": (30, 3), "busy": (60, 4)}
"""Short and long jobs a day."""
START_SECONDS = 60.0
EFFICIENCY = 0.95
LOOK_SECONDS = 60.0
GROWTH = GrowthRule(after_seconds=300.0, factor=5.0)
ROOM = PreemptionRules(after_seconds=60.0)
HOST = Host(2**40, 2**40, 0, 0, 0, 2, (0.0, 0.0, 0.0))


@dataclass(frozen=True)
class Job:
    """When it comes, the GPUs that it asks for, and its work: seconds on one GPU."""

    at: float
    gpus: int
    work: float
    is_long: bool


def trace(lab: str, seed: int) -> list[Job]:
    """The jobs of two days, by when they come."""
    chance = random.Random(f"two days of a {lab} lab {seed}")
    found = []
    for is_long, a_day in zip((False, True), LABS[lab], strict=True):
        at = chance.expovariate(a_day / (24 * HOUR))
        while at < UNTIL:
            if is_long:
                job = Job(at, ASKED, 24 * HOUR * chance.lognormvariate(0, 0.6), True)
            else:
                gpus = 1 if chance.random() < 0.7 else 2
                hours = 0.75 * chance.lognormvariate(0, 0.8)
                job = Job(at, gpus, hours * HOUR * speed(gpus), False)
            found.append(job)
            at += chance.expovariate(a_day / (24 * HOUR))
    return sorted(found, key=lambda job: job.at)


def speed(gpus: int) -> float:
    """How many times as fast as on one GPU."""
    return gpus**EFFICIENCY


@dataclass
class Attempt:
    """A job that runs: it makes progress from `ready` on."""

    uuids: tuple[str, ...]
    began: float
    ready: float


@dataclass
class Queue:
    """Two days of one policy."""

    jobs: Sequence[Job]
    elastic: bool
    preempts: bool
    now: float = 0.0
    line: WaitingLine = field(default_factory=WaitingLine)
    running: dict[int, Attempt] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    changes: int = 0
    work_done: float = 0.0
    used: float = 0.0

    def __post_init__(self) -> None:
        self._left = {number: job.work for number, job in enumerate(self.jobs)}
        self._gpus = tuple(fake_gpu(index, used_gib=0) for index in range(GPUS))

    def run(self) -> None:
        """All of it."""
        place, look = 0, LOOK_SECONDS
        while True:
            coming = self.jobs[place].at if place < len(self.jobs) else UNTIL
            ends = {job_id: self._end_of(job_id) for job_id in self.running}
            then = min(coming, look, UNTIL, *ends.values())
            self._progress(then)
            if then >= UNTIL:
                return
            if then == look:
                look += LOOK_SECONDS
            for job_id, end in ends.items():
                if end <= then:
                    del self.running[job_id]
                    self.ended[job_id] = then
            if then == coming:
                self.line.add(self._request(place))
                place += 1
            while self._pass():
                pass

    def _end_of(self, job_id: int) -> float:
        attempt = self.running[job_id]
        rate = speed(len(attempt.uuids))
        return max(self.now, attempt.ready) + self._left[job_id] / rate

    def _progress(self, then: float) -> None:
        for job_id, attempt in self.running.items():
            seconds = max(0.0, then - max(self.now, attempt.ready))
            done = min(self._left[job_id], seconds * speed(len(attempt.uuids)))
            self._left[job_id] -= done
            self.work_done += done
            self.used += (then - self.now) * len(attempt.uuids)
        self.now = then

    def _request(self, job_id: int) -> Request:
        job = self.jobs[job_id]
        is_elastic = self.elastic and job.is_long
        gpus = SIZES[0] if is_elastic else job.gpus
        need = ResourceNeed(world_size=gpus, gpus=gpus, sizes=SIZES if is_elastic else ())
        return Request(job_id=job_id, need=need, priority=int(self.preempts and not job.is_long))

    def _wishes(self) -> list[Request]:
        found = []
        for job_id, attempt in self.running.items():
            if self.elastic and self.jobs[job_id].is_long:
                size = len(attempt.uuids)
                now = RunningSize(
                    size=size,
                    ran_seconds=self.now - attempt.began,
                    left=self._end_of(job_id) - self.now,
                    cost=START_SECONDS,
                )
                if sizes := growth(now, SIZES, GROWTH).sizes:
                    found.append(wish(self._request(job_id), size, sizes, keeps=False))
        return found

    def _pass(self) -> bool:
        """Whether anything was changed by it."""
        wishes = self._wishes()
        if not self.line and not wishes:
            return False
        for each in wishes:
            self.line.add(each)
        machine = self._machine()
        starts = machine.decide(self.line).starts
        for each in wishes:
            self.line.remove(each.job_id)
        for start in starts:
            self._start(start.job_id, start.gpu_uuids)
        return bool(starts) or self._make_room(machine)

    def _machine(self) -> MachineNow:
        leases = [
            Lease(gpu_uuid=uuid, job_id=job_id, attempt=1)
            for job_id, attempt in self.running.items()
            for uuid in attempt.uuids
        ]
        snapshot = Snapshot(self.now, HOST, self._gpus, gpus_age_seconds=0.0)
        limits = LimitsConfig(cpu_ranks=0)
        return MachineNow(
            now=self.now, snapshot=snapshot, leases=leases, cpu_ranks_used=0, limits=limits
        )

    def _start(self, job_id: int, uuids: tuple[str, ...]) -> None:
        before = self.running.get(job_id)
        if before is not None:
            self.changes += 1
            uuids = (*before.uuids, *uuids)
        self.line.remove(job_id)
        self.waited.setdefault(job_id, self.now - self.jobs[job_id].at)
        self.running[job_id] = Attempt(uuids, self.now, self.now + START_SECONDS)

    def _make_room(self, machine: MachineNow) -> bool:
        if not self.preempts:
            return False
        running = [
            RunningJob(
                job_id=job_id,
                priority=self._request(job_id).priority,
                ran_seconds=self.now - attempt.began,
                can_shrink=self.elastic and len(attempt.uuids) > SIZES[0],
            )
            for job_id, attempt in self.running.items()
        ]
        asked = who_makes_room(self.line, machine, running, ROOM, lambda job_id: True)
        for each in asked:
            self.changes += 1
            del self.running[each.job_id]
            self.line.add(self._request(each.job_id))
        return bool(asked)

    def figures(self) -> list[float]:
        """Hours: GPUs in use, work that was done, the waits of short jobs (mean); jobs that ended,
        long ones; changes."""
        short = [wait for job_id, wait in self.waited.items() if not self.jobs[job_id].is_long]
        # Those that still wait have waited until now.
        short += [self.now - self.jobs[each].at for each in self._waiting() - self.waited.keys()]
        long_ended = sum(self.jobs[job_id].is_long for job_id in self.ended)
        used, done = self.used / HOUR, self.work_done / HOUR
        return [used, done, mean(short) / HOUR, long_ended, self.changes]

    def _waiting(self) -> set[int]:
        return {job_id for job_id in self.line if not self.jobs[job_id].is_long}


POLICIES = {
    "rigid": (False, False),
    "elastic: starts on what is free, grows": (True, False),
    "rigid, preempted": (False, True),
    "elastic, and shrinks": (True, True),
}


def table(lab: str, seeds: int) -> None:
    """Print what each policy makes of the same jobs."""
    traces = [trace(lab, seed) for seed in range(1, seeds + 1)]
    asked = mean(sum(job.work for job in jobs) / HOUR for jobs in traces)
    print(
        f"\nA {lab} lab: {mean(map(len, traces)):.0f} jobs in the mean, of {asked:.0f} GPU-hours of"
    )
    print(f"work; the machine has {GPUS * UNTIL / HOUR:.0f}.\n")
    print(
        "| queue | GPU-hours in use | against rigid | work done | short jobs wait, mean h | ",
        end="",
    )
    print("long jobs ended | changes |\n|---|---|---|---|---|---|---|")
    rigid: list[float] = []
    for name, (elastic, preempts) in POLICIES.items():
        rows = []
        for jobs in traces:
            queue = Queue(jobs, elastic, preempts)
            queue.run()
            rows.append(queue.figures())
        used = [row[0] for row in rows]
        rigid = rigid or used
        gains = [new - old for new, old in zip(used, rigid, strict=True)]
        means = [mean(column) for column in zip(*rows, strict=True)]
        print(
            f"| {name} | {means[0]:.0f} | {mean(gains):+.0f} ({min(gains):+.0f} to "
            f"{max(gains):+.0f}) | {means[1]:.0f} | {means[2]:.2f} | {means[3]:.1f} | "
            f"{means[4]:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    print(f"{machine()}; {options.seeds} seeds")
    for lab in LABS:
        table(lab, options.seeds)


if __name__ == "__main__":
    main()
