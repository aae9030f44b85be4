"""Fair share over a simulated week: what two users get of the GPUs, beside what they are to have.

    python -m benchmarks.fair_share [--seeds 5]

The scheduler is the daemon's own (`run_pass`), and so are the adding up and the order of users
(`DecayedUse`, `ranks_of`): only time, GPUs and jobs are told of. Each user submits jobs at random
(a Poisson process), of 1, 2 or 4 GPUs and of a length that is log-normal, without time limits, and
together more than there is. Use is booked every minute and at the end of each job, as the daemon
does. Prints a table; `--json` writes the rows.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.measuring import machine
from harness.fake_gpu_probe import fake_gpu
from zerotools.sensors.snapshot import Host, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.fair_share import DecayedUse, ranks_of
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.scheduler import run_pass

GPUS = 8
HOUR, WEEK = 3600.0, 7 * 86400.0
SIZES, PARTS = (1, 2, 4), (0.6, 0.3, 0.1)
"""GPUs of a job, and how many jobs in all have so many."""
MEDIAN_HOURS, SIGMA = 1.0, 0.9
BOOK_SECONDS = 60.0
OFF_MOST = 0.05


@dataclass(frozen=True)
class Case:
    """What two users are to have, and what they ask for in parts of all GPUs. `half_life` in
    days."""

    name: str
    weights: tuple[float, float]
    asked: tuple[float, float]
    half_life: float = 7.0


CASES = (
    Case("equal shares, equal demand", (1.0, 1.0), (1.2, 1.2)),
    Case("equal shares, one asks for thrice as much", (1.0, 1.0), (0.8, 2.4)),
    Case("shares 2 to 1", (2.0, 1.0), (1.2, 1.2)),
    Case("shares 4 to 1, the smaller asks for more", (4.0, 1.0), (1.2, 2.4)),
    Case("equal shares, half-life of a day", (1.0, 1.0), (0.8, 2.4), half_life=1.0),
)


@dataclass(frozen=True)
class Arrival:
    """A job: when it comes, whose it is, how many GPUs it takes for how many seconds."""

    at: float
    uid: int
    gpus: int
    seconds: float


def trace(case: Case, seed: int, until: float = WEEK) -> list[Arrival]:
    """The jobs of a week, by when they come."""
    chance = random.Random(f"{case.name} {seed}")
    mean_gpus = sum(size * part for size, part in zip(SIZES, PARTS, strict=True))
    mean_seconds = MEDIAN_HOURS * HOUR * 2.718281828459045 ** (SIGMA**2 / 2)
    found = []
    for uid, asked in enumerate(case.asked, 1):
        rate = asked * GPUS / (mean_gpus * mean_seconds)
        at = chance.expovariate(rate)
        while at < until:
            size = chance.choices(SIZES, PARTS)[0]
            length = MEDIAN_HOURS * HOUR * chance.lognormvariate(0.0, SIGMA)
            found.append(Arrival(at, uid, size, length))
            at += chance.expovariate(rate)
    return sorted(found, key=lambda arrival: arrival.at)


@dataclass
class Simulation:
    """A machine of GPUS whose jobs only take time."""

    weight: Callable[[int], float]
    half_life: float
    fair: bool = True
    now: float = 0.0
    pending: PendingQueue = field(default_factory=PendingQueue)
    used: dict[int, float] = field(default_factory=dict)
    passes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._use = DecayedUse(self.half_life)
        self._jobs: dict[int, Arrival] = {}
        self._running: dict[int, tuple[tuple[str, ...], float]] = {}
        """The GPUs of each job, and until when it was booked."""
        self._ends: list[tuple[float, int]] = []
        host = Host(2**40, 2**40, 0, 0, 0, 2, (0.0, 0.0, 0.0))
        self._gpus = tuple(fake_gpu(index, used_gib=0) for index in range(GPUS))
        self._host = host

    def run(self, arrivals: Sequence[Arrival], until: float = WEEK) -> None:
        """All of them, until then."""
        moments = [(arrival.at, number) for number, arrival in enumerate(arrivals, 1)]
        book = BOOK_SECONDS
        place = 0
        while True:
            coming = moments[place][0] if place < len(moments) else until
            ending = self._ends[0][0] if self._ends else until
            self.now = min(coming, ending, book, until)
            if self.now >= until:
                break
            if self.now == book:
                book += BOOK_SECONDS
                self._book()
                continue
            if self.now == coming:
                self._queue(moments[place][1], arrivals[place])
                place += 1
            while self._ends and self._ends[0][0] <= self.now:
                self._end(heapq.heappop(self._ends)[1])
            self._pass()
        self._book()

    def _queue(self, job_id: int, arrival: Arrival) -> None:
        self._jobs[job_id] = arrival
        need = ResourceNeed(world_size=arrival.gpus, gpus=arrival.gpus)
        self.pending.add(Request(job_id=job_id, need=need, uid=arrival.uid))

    def _book(self, *job_ids: int) -> None:
        for job_id in job_ids or list(self._running):
            uuids, since = self._running[job_id]
            uid, seconds = self._jobs[job_id].uid, (self.now - since) * len(uuids)
            self.used[uid] = self.used.get(uid, 0.0) + seconds
            self._use.add(uid, seconds, self.now)
            self._running[job_id] = (uuids, self.now)

    def _end(self, job_id: int) -> None:
        self._book(job_id)
        del self._running[job_id]

    def _pass(self) -> None:
        uids = self.pending.uids
        used = {uid: self._use.of(uid, self.now) for uid in uids}
        self.pending.ranks = ranks_of(uids, used, self.weight) if self.fair else {}
        leases = [
            Lease(gpu_uuid=uuid, job_id=job_id, attempt=1)
            for job_id, (uuids, _) in self._running.items()
            for uuid in uuids
        ]
        began = time.thread_time()
        given = PassInput(
            now=self.now,
            snapshot=Snapshot(self.now, self._host, self._gpus, gpus_age_seconds=0.0),
            leases=leases,
            cpu_ranks_used=0,
            limits=LimitsConfig(cpu_ranks=0),
        )
        decisions = run_pass(self.pending, given)
        self.passes.append(time.thread_time() - began)
        for start in decisions.starts:
            self.pending.remove(start.job_id)
            self._running[start.job_id] = (start.gpu_uuids, self.now)
            heapq.heappush(self._ends, (self.now + self._jobs[start.job_id].seconds, start.job_id))


@dataclass(frozen=True)
class Outcome:
    """A week: GPU-hours of both users, the part of all of each, and what it was to be."""

    case: str
    seed: int
    fair: bool
    jobs: int
    hours: tuple[float, float]
    part: float
    share: float

    @property
    def off(self) -> float:
        """How far the first user's part is from their share, in parts of that; the other's is as
        far in hours."""
        return max(abs(self.part / self.share - 1), abs((1 - self.part) / (1 - self.share) - 1))


def simulate(case: Case, seed: int, *, fair: bool = True) -> Outcome:
    """One week."""
    found = trace(case, seed)
    weights = dict(enumerate(case.weights, 1))
    simulation = Simulation(weights.__getitem__, case.half_life * 86400.0, fair)
    simulation.run(found)
    first, second = (simulation.used.get(uid, 0.0) / HOUR for uid in (1, 2))
    share = case.weights[0] / sum(case.weights)
    return Outcome(
        case.name, seed, fair, len(found), (first, second), first / (first + second), share
    )


def main() -> int:
    """Print the table; the exit status is 1 if a user's part was too far from their share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [simulate(case, seed) for case in CASES for seed in range(1, options.seeds + 1)]
    plain = [simulate(case, 1, fair=False) for case in CASES]
    if options.json:
        print(json.dumps([asdict(row) for row in (*rows, *plain)], indent=1))
        return 0
    print(machine())
    print(f"{GPUS} GPUs, a week; parts of the GPU-hours of the first user\n")
    for case, without in zip(CASES, plain, strict=True):
        of_case = [row for row in rows if row.case == case.name]
        worst = max(of_case, key=lambda row: row.off)
        hours = [sum(row.hours) for row in of_case]
        print(
            f"{case.name:45}  share {worst.share:.3f}  got "
            f"{min(row.part for row in of_case):.3f} to {max(row.part for row in of_case):.3f}  "
            f"off by {worst.off:.1%} at most  {min(hours):.0f} of {GPUS * WEEK / HOUR:.0f} "
            f"GPU-hours used  by age alone {without.part:.3f}"
        )
    worst_of_all = max(row.off for row in rows)
    holds = worst_of_all <= OFF_MOST
    print(f"\nwithin {OFF_MOST:.0%} of their shares: {'holds' if holds else 'does NOT hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
