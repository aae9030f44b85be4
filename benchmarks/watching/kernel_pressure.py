"""Who comes first as the memory of a control group runs out: the daemon's guard, or the kernel.

    python -m benchmarks.watching.kernel_pressure [--runs 50]

Real processes take real memory in a control group with a limit of its own (root alone may make it;
`harness.kernel.memory_limits`), and the kernel's OOM killer ends whom it wants. The guard reads
that group as the daemon does its own (`zerotools.sensors.cgroup_memory`). The clock alone is
simulated, so that a leak of an hour takes a second: each seed has a limit of 2 to 4 GiB and 2 to 4
jobs, which
hold 30 to 60 % of it; one leaks, from 1 to 256 MiB/s, log-uniform. A job that is asked goes on to
the end of its step, and holds its memory while it saves. Lost is the work since the last checkpoint
of whoever was ended, and of each that was asked the time until it had saved. The same runs again
without a guard.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import machine
from harness.kernel.memory_limits import HungryProcess, LimitedGroup, NoLimit, limited
from zerotoolsd.dispatch.memory_guard.escalation import (
    Ladder,
    MemoryHolder,
    Rung,
    next_act,
    wanted_rung,
)
from zerotoolsd.dispatch.memory_guard.host_forecast import LONG_SECONDS, MemorySample
from zerotoolsd.dispatch.memory_guard.host_reading import HostReading

MIB = 1 << 20
LOOK, HORIZON = 0.5, 1800.0
SLOWEST, FASTEST = 1.0, 256.0
"""MiB per second of a leak."""


@dataclass
class RealJob:
    """One job, whose memory is that of a process: bytes and seconds."""

    number: int
    process: HungryProcess
    priority: int
    held: int
    step_seconds: float
    save_seconds: float
    saved_at: float
    leak: float = 0.0
    owed: float = 0.0
    asked: float | None = None
    ended: float | None = None
    gone: bool = False

    def saves_when(self) -> float:
        """When it has saved, if it was asked: at the end of its step."""
        assert self.asked is not None
        return math.ceil(self.asked / self.step_seconds) * self.step_seconds + self.save_seconds


@dataclass
class Outcome:
    """What came of one run: seconds of work, and how many."""

    lost: float = 0.0
    kernel: int = 0
    asked: int = 0
    ended: int = 0
    counted: int = 0
    """Of the kernel's own counter."""
    samples: deque[MemorySample] = field(
        default_factory=lambda: deque(maxlen=int(LONG_SECONDS / LOOK) + 2)
    )
    ladder: Ladder = field(default_factory=Ladder)
    before: HostReading | None = None


def run(seed: int, scratch: Path, *, guarded: bool) -> Outcome:
    """One run. Raises NoLimit."""
    dice = random.Random(seed)
    limit = dice.choice((2048, 3072, 4096)) * MIB
    found = Outcome()
    with limited(limit, scratch) as group:
        jobs = _jobs(dice, limit, group)
        begins = dice.uniform(60, 120)
        for look in range(int(HORIZON / LOOK)):
            now = look * LOOK
            if now >= begins:
                _leak(jobs, now)
            _end(jobs, now, found)
            if guarded:
                _look(group, jobs, now, found)
            if not any(job.leak and not job.gone for job in jobs):
                break
        found.counted = group.read().ooms or 0
        for job in jobs:
            job.process.kill()
    return found


def _jobs(dice: random.Random, limit: int, group: LimitedGroup) -> list[RealJob]:
    parts = [dice.uniform(0.5, 1.5) for _ in range(dice.randint(2, 4))]
    used = dice.uniform(0.3, 0.6) * limit
    jobs = [
        RealJob(
            number=number,
            process=group.start(),
            priority=dice.choice((-2, 0, 0, 0, 2)),
            held=int(used * part / sum(parts)),
            step_seconds=dice.uniform(0.5, 10),
            save_seconds=dice.uniform(1, 20),
            saved_at=-dice.uniform(0, 1800),
        )
        for number, part in enumerate(parts)
    ]
    for job in jobs:
        job.process.take(job.held)
    leak = math.exp(dice.uniform(math.log(SLOWEST), math.log(FASTEST)))
    dice.choice(jobs).leak = leak * MIB
    return jobs


def _leak(jobs: list[RealJob], now: float) -> None:
    for job in jobs:
        steps = job.asked is None or now < job.saves_when() - job.save_seconds
        if job.gone or not steps or job.ended is not None:
            continue
        job.owed += job.leak * LOOK
        if job.owed >= MIB and job.process.take(int(job.owed)):
            job.held, job.owed = job.held + int(job.owed), 0.0


def _end(jobs: list[RealJob], now: float, found: Outcome) -> None:
    for job in jobs:
        if job.gone:
            continue
        if not job.process.is_running():
            found.kernel += 1
            found.lost += now - job.saved_at
        elif job.ended is not None and now >= job.ended + 0.5:
            found.lost += now - job.saved_at
        elif job.ended is None and job.asked is not None and now >= job.saves_when():
            found.lost += now - job.asked
        else:
            continue
        job.process.kill()
        job.gone = True


def _look(group: LimitedGroup, jobs: list[RealJob], now: float, found: Outcome) -> None:
    seen = group.read()
    reading = HostReading(
        total=seen.limit_bytes or 0,
        available=seen.left_bytes or 0,
        stalled_percent=seen.stalled_percent,
        of_limit=True,
        reclaims=seen.reclaims,
        kills=seen.ooms,
    )
    found.samples.append(reading.sample(now, found.before))
    found.before = reading
    found.ladder = found.ladder.moved(*wanted_rung(found.samples), now)
    if found.ladder.wanted < Rung.SAVE:
        return
    holders = [
        MemoryHolder(
            job_id=job.number,
            priority=job.priority,
            held=job.held,
            unsaved_seconds=now - job.saved_at,
            asked=job.asked,
            ended=job.ended,
        )
        for job in jobs
        if not job.gone
    ]
    act = next_act(found.ladder.wanted, holders, reading.total, now)
    if act is None:
        return
    job = jobs[act.job_id]
    if job.asked is None:
        job.asked = now
        found.asked += 1
    if act.at_once:
        job.ended = now
        found.ended += 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with_guard = [run(seed, Path(scratch), guarded=True) for seed in range(runs)]
            without = [run(seed, Path(scratch), guarded=False) for seed in range(runs)]
        except NoLimit as why:
            print(f"not run: {why}")
            return
    first = sum(found.kernel == 0 for found in with_guard)
    print(f"a job leaks in a real control group: {runs} runs")
    print(f"  the guard came first        {first} of {runs}")
    asked, ended = sum(x.asked for x in with_guard), sum(x.ended for x in with_guard)
    print(f"  asked, of those ended       {asked}, {ended}")
    for title, those in (("with the guard", with_guard), ("without", without)):
        kills, counted = sum(x.kernel for x in those), sum(x.counted for x in those)
        lost = sum(found.lost for found in those) / runs
        print(
            f"  {title:<15} killed by the kernel {kills:3d} (it counts {counted:3d})   lost "
            f"{lost:6.0f} s of work each"
        )


if __name__ == "__main__":
    main()
