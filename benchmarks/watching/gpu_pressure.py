"""Who fails first as the memory of a shared GPU runs out: the job that leaks, or one beside it.

    python -m benchmarks.watching.gpu_pressure [--runs 50]

The guard's own forecast and ladder (`zerotoolsd.dispatch.memory_guard`), every second, over
simulated GPUs: no GPU is needed, and none was at hand. Each seed has a GPU of 24 to 141 GiB and 2
to 4 jobs, which have declared 70 to 95 % of it. Their allocators take memory in blocks of 2 MiB to
1 GiB and keep it; each job loads its model (0.5 to 4 GiB/s), trains, and now and then evaluates,
which takes it up to what it declared; before it trains on it gives that back. One of them leaks
beyond what it declared, from 1 MiB/s to 4 GiB/s, log-uniform; in every fifth run a program leaks
that is not ours. Whoever asks for a block that is not there fails, and loses its work since its
last checkpoint: the driver ends nobody else. A job that is asked goes on to the end of its step,
and saves. The same GPUs run again without a guard.

Other GPUs are well: jobs hold up to 2 % more than they declared, contexts are of 0.3 to 0.8 GiB
where 0.5 are set aside, memory grows slowly as it falls into pieces, but never beyond that; on
every second one a notebook loads something at some time. Whoever is asked there is a false alarm.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.measuring import machine
from zerotoolsd.dispatch.memory_guard.escalation import MemoryHolder, Rung, reserve_of
from zerotoolsd.dispatch.memory_guard.gpu_escalation import GpuJob, GpuNow, first_rung, next_on
from zerotoolsd.dispatch.memory_guard.gpu_forecast import GpuCurve, GpuSample

GIB, MIB = 1 << 30, 1 << 20
TICK, LOOK, HORIZON = 0.25, 1.0, 7200.0
CONTEXT = GIB // 2
"""Set aside for each job."""
SLOWEST, FASTEST = 1 * MIB, 4096 * MIB
"""Bytes per second of a leak."""


@dataclass
class SharedJob:
    """One job: bytes, seconds, and bytes per second."""

    number: int
    priority: int
    declared: float
    base: float
    peak: float
    block: float
    begins: float
    loads: float
    step_seconds: float
    save_seconds: float
    every: float
    lasts: float
    saved_at: float = 0.0
    leak: float = 0.0
    leaks_from: float = math.inf
    creep: float = 0.0
    context: float = CONTEXT
    held: float = 0.0
    leaked: float = 0.0
    trains_from: float = math.inf
    asked: float | None = None
    ended: float | None = None
    gone: float | None = None
    failed: bool = False

    def wants(self, now: float) -> float:
        """Bytes that it needs now, before they are rounded up to blocks."""
        if now < self.begins:
            return 0.0
        if self.trains_from is math.inf:
            needed = min(self.base, self.held - self.context + self.loads * TICK)
            if needed >= self.base:
                self.trains_from = now
            return self.context + max(0.0, needed)
        since = now - self.trains_from
        evaluates = self.every - self.lasts <= since % self.every
        crept = min(self.creep * since, max(0.0, self.peak - self.base))
        return self.context + (self.peak if evaluates else self.base + crept) + self.leaked

    def saves_when(self) -> float:
        """When it has saved, if it was asked: at the end of its step."""
        assert self.asked is not None
        return math.ceil(self.asked / self.step_seconds) * self.step_seconds + self.save_seconds


@dataclass
class SharedGpu:
    """The GPU of one seed."""

    total: float
    jobs: list[SharedJob]
    stranger: float = 0.0
    stranger_leak: float = 0.0
    stranger_to: float = math.inf
    begins: float = math.inf
    lost: float = 0.0
    innocent: int = 0
    leaker: int = 0
    asked: int = 0
    ended: int = 0
    curve: GpuCurve = field(default_factory=GpuCurve)

    @property
    def free(self) -> float:
        """Bytes."""
        return self.total - self.stranger - sum(job.held for job in self.jobs if job.gone is None)


def make(seed: int, *, well: bool = False) -> SharedGpu:
    """The GPU of a seed."""
    dice = random.Random(-seed - 1 if well else seed)
    total = dice.choice((24, 40, 80, 141)) * GIB
    count = dice.randint(2, 4)
    parts = [dice.uniform(0.5, 1.5) for _ in range(count)]
    promised = dice.uniform(0.7, 0.95) * total - count * CONTEXT
    jobs = []
    for number, part in enumerate(parts):
        declared = promised * part / sum(parts)
        more = dice.uniform(1.0, 1.02) if well else 1.0
        peak = declared * more * (1.0 if well else dice.uniform(0.8, 1.0))
        jobs.append(
            SharedJob(
                number=number,
                priority=dice.choice((-2, 0, 0, 0, 2)),
                declared=declared,
                base=peak * dice.uniform(0.5, 0.9),
                peak=peak,
                block=dice.choice((2, 20, 64, 512, 1024)) * MIB,
                begins=dice.uniform(0, 120),
                loads=dice.uniform(0.5, 4) * GIB,
                step_seconds=dice.uniform(0.5, 10),
                save_seconds=dice.uniform(1, 20),
                every=dice.uniform(60, 900),
                lasts=dice.uniform(10, 50),
                saved_at=-dice.uniform(0, 1800),
                creep=dice.uniform(0, 2) * MIB if well else 0.0,
                context=dice.uniform(0.3, 0.8) * GIB if well else CONTEXT,
            )
        )
    gpu = SharedGpu(total, jobs)
    if well:
        if seed % 2:
            gpu.begins, gpu.stranger_leak = dice.uniform(10, 1200), dice.uniform(0.2, 4) * GIB
            gpu.stranger_to = max(0.0, min(5 * GIB, 0.6 * (total - promised)))
        return gpu
    rate = math.exp(dice.uniform(math.log(SLOWEST), math.log(FASTEST)))
    if seed % 5 == 4:
        gpu.begins, gpu.stranger_leak = dice.uniform(200, 600), rate
    else:
        leaker = dice.choice(jobs)
        leaker.leak, leaker.leaks_from = rate, dice.uniform(200, 600)
    return gpu


def run(gpu: SharedGpu, *, guarded: bool) -> SharedGpu:
    """Let it go until somebody has failed, whatever leaks is gone, or the time is over."""
    for tick in range(int(HORIZON / TICK)):
        now = tick * TICK
        _others(gpu, now)
        for job in gpu.jobs:
            if job.gone is None:
                _train(gpu, job, now)
        if guarded and tick % round(LOOK / TICK) == 0:
            _look(gpu, now)
        leaks = any(job.leak and job.gone is None for job in gpu.jobs) or gpu.stranger_leak
        if now > 1800 and not leaks:
            break
    return gpu


def _others(gpu: SharedGpu, now: float) -> None:
    if now >= gpu.begins:
        room = min(gpu.free, gpu.stranger_to - gpu.stranger)
        if room < gpu.stranger_leak * TICK and gpu.stranger_to == math.inf:
            gpu.stranger, gpu.stranger_leak, gpu.begins = 0.0, 0.0, math.inf  # it fails
            return
        gpu.stranger += max(0.0, min(gpu.stranger_leak * TICK, room))


def _train(gpu: SharedGpu, job: SharedJob, now: float) -> None:
    if job.ended is not None and now >= job.ended + 0.5:
        gpu.lost += now - job.saved_at
        job.gone = now
        return
    saving = job.asked is not None and now >= job.saves_when() - job.save_seconds
    if job.asked is not None and now >= job.saves_when():
        gpu.lost += now - job.asked
        job.gone = now
        return
    if saving:
        return
    if now >= job.leaks_from:
        job.leaked += job.leak * TICK
    wanted = math.ceil(job.wants(now) / job.block) * job.block if now >= job.begins else 0.0
    if wanted - job.held > gpu.free:
        gpu.lost += max(0.0, now - job.saved_at)
        job.gone, job.failed = now, True
        if job.leak:
            gpu.leaker += 1
        else:
            gpu.innocent += 1
        return
    job.held = wanted


def _look(gpu: SharedGpu, now: float) -> None:
    alive = [job for job in gpu.jobs if job.gone is None]
    gpu.curve.add(
        GpuSample(
            now,
            int(gpu.total),
            int(gpu.free),
            {job.number: int(job.held) for job in alive},
            {job.number: int(job.declared + CONTEXT) for job in alive},
        )
    )
    look = gpu.curve.outlook(reserve_of(int(gpu.total)))
    strangers = gpu.stranger > 512 * MIB
    if first_rung(look) is Rung.CALM or (len(alive) < 2 and not strangers):
        return
    jobs = [_seen(gpu, job, now) for job in alive]
    state = GpuNow(look=look, jobs=jobs, owners=len(alive), strangers=strangers)
    act = next_on(state, Rung.STOP, now)
    if act is None:
        return
    job = gpu.jobs[act.job_id]
    if job.asked is None:
        job.asked = now
        gpu.asked += 1
    if act.at_once:
        job.ended = now
        gpu.ended += 1


def _seen(gpu: SharedGpu, job: SharedJob, now: float) -> GpuJob:
    newest = gpu.curve.newest
    return GpuJob(
        holder=MemoryHolder(
            job_id=job.number,
            priority=job.priority,
            held=int(job.held),
            unsaved_seconds=now - job.saved_at,
            loads=job.trains_from is math.inf,
            asked=job.asked,
            ended=job.ended,
        ),
        over=newest.over(job.number),
        to_come=newest.to_come_of(job.number),
        grows=gpu.curve.grows(job.number),
    )


def _wrong(gpu: SharedGpu) -> int:
    """Jobs that were asked and did not leak, where a job leaks."""
    return sum(job.asked is not None and not job.leak for job in gpu.jobs)


def _report(name: str, seeds: Sequence[int]) -> None:
    with_guard = [run(make(seed), guarded=True) for seed in seeds]
    without = [run(make(seed), guarded=False) for seed in seeds]
    first = sum(gpu.innocent == 0 for gpu in with_guard)
    print(f"{name}: {len(seeds)} GPUs")
    print(f"  no other job failed         {first} of {len(seeds)}")
    asked, ended = (sum(getattr(gpu, what) for gpu in with_guard) for what in ("asked", "ended"))
    print(f"  asked, of those ended       {asked}, {ended}")
    print(f"  asked that did not leak     {sum(map(_wrong, with_guard))}")
    for title, found in (("with the guard", with_guard), ("without", without)):
        lost = sum(gpu.lost for gpu in found) / len(found)
        print(
            f"  {title:<15} failed: beside it {sum(gpu.innocent for gpu in found):3d}, itself "
            f"{sum(gpu.leaker for gpu in found):3d}   lost {lost:6.0f} s of work each"
        )
    for seed, gpu in zip(seeds, with_guard, strict=True):
        if gpu.innocent:
            rate = max([make(seed).stranger_leak, *(job.leak for job in gpu.jobs)]) / GIB
            print(f"    seed {seed}: {rate:.3f} GiB/s of {gpu.total / GIB:.0f} GiB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    print(machine())
    print(f"{runs} simulated GPUs; reserve {reserve_of(80 * GIB) / GIB:.1f} GiB of 80\n")
    _report("a job leaks", [seed for seed in range(runs) if seed % 5 != 4])
    _report("another program leaks", [seed for seed in range(runs) if seed % 5 == 4])
    well = [run(make(seed, well=True), guarded=True) for seed in range(runs)]
    print(f"nothing leaks: {runs} GPUs")
    print(f"  GPUs with a false alarm     {sum(gpu.asked > 0 for gpu in well)}")
    print(f"  jobs that failed            {sum(gpu.innocent for gpu in well)}")


if __name__ == "__main__":
    main()
