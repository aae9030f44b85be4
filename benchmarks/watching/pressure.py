"""Who comes first as the memory of the host runs out: the daemon's guard, or the kernel.

    python -m benchmarks.watching.pressure [--runs 50]

The guard's own forecast and ladder (`zerotoolsd.dispatch.memory_guard`), every 0.5 s, over
simulated machines: nothing here fills the memory of the machine that runs it. Each seed has a host
of 64 to 1024 GiB and 2 to 5 jobs; one of them leaks, from a slow leak (0.02 GiB/s) to a rush (8
GiB/s), log-uniform; in every fifth run a program leaks that is not ours. A job that is asked goes
on to the end of its step, and holds its memory while it saves. Where nothing is available the
kernel ends whoever holds most. Lost is the work since the last checkpoint of whoever was ended, and
of each that was asked the time until it had saved. The same machines run again without a guard.

A third kind of machine is well: jobs load what they need (0.5 to 4 GiB/s) up to 97 % of what there
is, of which the daemon expects three quarters to all. Whoever is asked there is a false alarm.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from dataclasses import dataclass, field

from benchmarks.measuring import machine
from zerotoolsd.dispatch.memory_guard.escalation import (
    Ladder,
    MemoryHolder,
    Rung,
    next_act,
    reserve_of,
)
from zerotoolsd.dispatch.memory_guard.host_forecast import LONG_SECONDS, MemorySample
from zerotoolsd.dispatch.memory_guard.host_guard import MOST

GIB = 1 << 30
TICK, LOOK, HORIZON = 0.1, 0.5, 1800.0
SLOWEST, FASTEST = 0.02, 8.0
"""GiB per second of a leak."""


@dataclass
class SimulatedJob:
    """One job: bytes, seconds, and bytes per second."""

    number: int
    priority: int
    held: float
    step_seconds: float
    save_seconds: float
    saved_at: float
    leak: float = 0.0
    loads_to: float = 0.0
    expected: float = 0.0
    asked: float | None = None
    ended: float | None = None
    gone: float | None = None

    def work(self, now: float) -> float:
        """Seconds since it saved last."""
        return now - self.saved_at

    def saved_when(self) -> float:
        """When it has saved, if it was asked: at the end of its step."""
        assert self.asked is not None
        step_end = math.ceil(self.asked / self.step_seconds) * self.step_seconds
        return step_end + self.save_seconds


@dataclass
class SimulatedHost:
    """The machine of one seed."""

    total: float
    others: float
    jobs: list[SimulatedJob]
    foreign_leak: float
    begins: float
    lost: float = 0.0
    kernel: int = 0
    asked: int = 0
    ended: int = 0
    killed_others: bool = False
    samples: deque[MemorySample] = field(
        default_factory=lambda: deque(maxlen=int(LONG_SECONDS / LOOK) + 2)
    )
    ladder: Ladder = field(default_factory=Ladder)

    def available(self) -> float:
        """Bytes."""
        return self.total - self.others - sum(j.held for j in self.jobs if j.gone is None)


def make(seed: int) -> SimulatedHost:
    """The host of a seed."""
    dice = random.Random(seed)
    total = dice.choice((64, 128, 256, 512, 1024)) * GIB
    count = dice.randint(2, 5)
    parts = [dice.uniform(0.5, 1.5) for _ in range(count)]
    used = dice.uniform(0.4, 0.8) * total
    jobs = [
        SimulatedJob(
            number=number,
            priority=dice.choice((-2, 0, 0, 0, 2)),
            held=used * part / sum(parts),
            step_seconds=dice.uniform(0.5, 10),
            save_seconds=dice.uniform(1, 20),
            saved_at=-dice.uniform(0, 1800),
        )
        for number, part in enumerate(parts)
    ]
    rate = math.exp(dice.uniform(math.log(SLOWEST), math.log(FASTEST))) * GIB
    foreign = seed % 5 == 4
    if not foreign:
        dice.choice(jobs).leak = rate
    return SimulatedHost(total, 0.05 * total, jobs, rate if foreign else 0.0, dice.uniform(60, 120))


def make_well(seed: int) -> SimulatedHost:
    """A host on which jobs only load what they need."""
    host, dice = make(seed), random.Random(-seed - 1)
    used = dice.uniform(0.7, 0.92) * host.total
    whole = sum(job.held for job in host.jobs)
    for job in host.jobs:
        job.loads_to, job.held = used * job.held / whole, 0.0
        job.expected = job.loads_to * dice.uniform(0.75, 1.0)
        job.leak = dice.uniform(0.5, 4) * GIB
    host.foreign_leak = 0.0
    return host


def run(host: SimulatedHost, *, guarded: bool) -> None:
    """Let it go, until the kernel has ended what leaks, or the time is over."""
    for tick in range(int(HORIZON / TICK)):
        now = tick * TICK
        if now >= host.begins:
            _leak(host, now)
        _save(host, now)
        if host.available() <= 0:
            _kernel(host, now)
        if guarded and tick % round(LOOK / TICK) == 0:
            _look(host, now)


def _leak(host: SimulatedHost, now: float) -> None:
    host.others += host.foreign_leak * TICK
    for job in host.jobs:
        steps = job.asked is None or now < job.saved_when() - job.save_seconds
        if job.gone is None and steps:
            job.held = min(job.loads_to or math.inf, job.held + job.leak * TICK)


def _save(host: SimulatedHost, now: float) -> None:
    for job in host.jobs:
        if job.gone is None and job.ended is None and job.asked is not None:
            if now >= job.saved_when():
                host.lost += now - job.asked
                job.gone = now
        elif job.gone is None and job.ended is not None and now >= job.ended + 0.5:
            host.lost += job.work(now)
            job.gone = now


def _kernel(host: SimulatedHost, now: float) -> None:
    alive = [job for job in host.jobs if job.gone is None]
    largest = max(alive, key=lambda job: job.held, default=None)
    if largest is None or host.others > largest.held:
        host.killed_others, host.foreign_leak, host.others = True, 0.0, 0.05 * host.total
        return
    host.kernel += 1
    host.lost += largest.work(now)
    largest.gone = now


def _look(host: SimulatedHost, now: float) -> None:
    coming = sum(max(0.0, job.expected - job.held) for job in host.jobs if job.gone is None)
    available = int(max(0, host.available()))
    alive = [job for job in host.jobs if job.gone is None]
    loading = any(job.loads_to > job.held and job.held < MOST * job.expected for job in alive)
    host.samples.append(MemorySample(now, int(host.total), available, int(coming), loading))
    host.ladder = host.ladder.after(host.samples)
    if host.ladder.wanted < Rung.SAVE:
        return
    holders = [
        MemoryHolder(
            job_id=job.number,
            priority=job.priority,
            held=int(job.held),
            unsaved_seconds=job.work(now),
            asked=job.asked,
            ended=job.ended,
        )
        for job in host.jobs
        if job.gone is None
    ]
    act = next_act(host.ladder.wanted, holders, int(host.total), now)
    if act is None:
        return
    job = host.jobs[act.job_id]
    if job.asked is None:
        job.asked = now
        host.asked += 1
    if act.at_once:
        job.ended = now
        host.ended += 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    print(machine())
    print(f"{runs} simulated machines; reserve {reserve_of(256 * GIB) / GIB:.1f} GiB of 256\n")
    for name, foreign in (("a job leaks", False), ("another program leaks", True)):
        seeds = [seed for seed in range(runs) if (seed % 5 == 4) == foreign]
        with_guard, without = [], []
        for seed in seeds:
            for found, guarded in ((with_guard, True), (without, False)):
                host = make(seed)
                run(host, guarded=guarded)
                found.append(host)
        first = sum(host.kernel == 0 for host in with_guard)
        print(f"{name}: {len(seeds)} machines")
        print(f"  the guard came first        {first} of {len(seeds)}")
        asked, ended = _sum(with_guard, "asked"), _sum(with_guard, "ended")
        print(f"  asked, of those ended       {asked}, {ended}")
        for title, found in (("with the guard", with_guard), ("without", without)):
            lost = sum(host.lost for host in found) / len(found)
            kills = _sum(found, "kernel")
            print(
                f"  {title:<15} killed by the kernel {kills:3d}   lost {lost:6.0f} s of work each"
            )
        for seed, host in zip(seeds, with_guard, strict=True):
            if host.kernel:
                rate = max([host.foreign_leak, *(job.leak for job in host.jobs)]) / GIB
                print(f"    seed {seed}: {rate:.2f} GiB/s of {host.total / GIB:.0f} GiB")
    well = [make_well(seed) for seed in range(runs)]
    for host in well:
        run(host, guarded=True)
    print(f"nothing leaks: {runs} machines")
    print(f"  machines with a false alarm {sum(host.asked > 0 for host in well)}")


def _sum(hosts: list[SimulatedHost], what: str) -> int:
    return sum(int(getattr(host, what)) for host in hosts)


if __name__ == "__main__":
    main()
