"""Decides the next action when the memory of the host or of a shared GPU is running out. No I/O.

In this table, "used up in N s" is the forecast, and "left" is the fraction of the memory that is
still available:

    level   condition                                          action
    WAIT    used up in 120 s and at most 3/10 left, or at      no job starts
            most 1/25 left, or the kernel has killed
            programs for lack of memory
    SAVE    used up in 45 s and at most 3/10 left; or at most  the job of lowest value is asked to
            1/25 left and all tasks wait for a fifth of the    save and stop
            time, or the kernel reclaims memory at the limit
            of the control group at every reading
    STOP    used up in 10 s, or less than the reserve is left  the job that was asked is killed; if
            and it shrinks, or the kernel kills programs       none was, the one of lowest value

Cached files fill a control group up to its limit, and the kernel then reclaims the memory of cached
files; this is normal. So reclaim counts only if memory that cannot be reclaimed fills the group.

Jobs that load (they have not taken a step yet, and hold less than their expected maximum) use
memory fast, but only for a while. While jobs load, STOP begins at 3 s, and SAVE is skipped.

A job frees its memory some time after the request, so the next request follows at least
`PAUSE_SECONDS` later. When memory is free again, the level falls by one at a time, each after
`CALM_SECONDS` without a reason for the higher level.

The job of lowest value has the lowest priority; of several such jobs, it has the least unsaved
work. Only jobs that hold a relevant part of the memory count, and, below STOP, only jobs that are
known to save. Programs that do not belong to this daemon's jobs are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from zerotoolsd.config.config_tables import NOTHING, SAVE, STOP, WAIT
from zerotoolsd.dispatch.forecast_memory_exhaustion import (
    LATELY_SECONDS,
    GpuOutlook,
    MemorySample,
    seconds_left,
)

GIB = 1 << 30


class EscalationStep(IntEnum):
    """The levels of action when memory runs out, from the mildest to the strongest."""

    CALM = 0
    WAIT = 1
    SAVE = 2
    STOP = 3


HIGHEST = {
    NOTHING: EscalationStep.CALM,
    WAIT: EscalationStep.WAIT,
    SAVE: EscalationStep.SAVE,
    STOP: EscalationStep.STOP,
}
"""For each value of `[pressure] most`: the strongest level of action that it allows."""
SECONDS = {EscalationStep.WAIT: 120.0, EscalationStep.SAVE: 45.0, EscalationStep.STOP: 10.0}
LOADING_SECONDS = 3.0
SCARCE_PART = 0.3
"""If more than this fraction of the memory is available, only STOP depends on the rate:
programs that start use memory fast.
"""
WAIT_PART = 0.04
STALLED_PERCENT = 20.0
RECLAIM_SECONDS, RECLAIMS = 3.0, 4
"""The kernel counts as short of memory if every sample of this many seconds, and at least this
many samples, show reclaimed memory.
"""
RESERVE_PART, LEAST_RESERVE = 0.02, 256 << 20
CALM_SECONDS = 15.0
PAUSE_SECONDS, HURRY_SECONDS = 20.0, 3.0
"""Least number of seconds between actions against two jobs: below the level STOP, and at STOP.
"""
WORTH_PART = 0.02
"""Fraction of all memory that a job must hold, at least, to be considered for an action."""


def reserve_of(total: int) -> int:
    """Return the amount of free memory, in bytes, below which the kernel may kill processes at
    any time.

    `total` is all memory in bytes.
    """
    return max(LEAST_RESERVE, int(RESERVE_PART * total))


@dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """A running job and the memory that it holds.

    Attributes:
        held: the memory that the job holds, in bytes.
        unsaved_seconds: the working time since the last save.
        saves: whether the job is known to save on request.
        loads: whether the job has not done a step yet.
        asked, ended: the monotonic times at which the job was asked to save, and was ended; None:
            not yet.
    """

    job_id: int
    priority: int
    held: int
    unsaved_seconds: float
    saves: bool = True
    loads: bool = False
    asked: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class MemoryAction:
    """An action against one job: ask it to save and stop, or end it now (`at_once` is True)."""

    job_id: int
    at_once: bool


@dataclass(frozen=True)
class Escalation:
    """The current level of action, and the data from which the next level is decided.

    `wanted` is the level that the newest sample requires, and `why` is the reason; actions against
    jobs depend on this level. `level` is the level that decides whether jobs may start. It
    decreases only slowly.
    """

    level: EscalationStep = EscalationStep.CALM
    wanted: EscalationStep = EscalationStep.CALM
    why: str = ""
    calm_since: float | None = None

    def after(self, samples: Sequence[MemorySample]) -> Escalation:
        """Return the new state after the newest of `samples`."""
        return self.updated(*wanted_level(samples), samples[-1].clock)

    def updated(self, wanted: EscalationStep, why: str, now: float) -> Escalation:
        """Return the new state if the level `wanted` is required for the reason `why`. `now` is
        a monotonic time in seconds.
        """
        if wanted >= self.level:
            return Escalation(wanted, wanted, why)
        since = now if self.calm_since is None else self.calm_since
        if now - since < CALM_SECONDS:
            return replace(self, wanted=wanted, calm_since=since, why=why or self.why)
        return Escalation(EscalationStep(self.level - 1), wanted, why or self.why, now)


def wanted_level(samples: Sequence[MemorySample]) -> tuple[EscalationStep, str]:
    """Return the level that the newest samples require, and the reason in one sentence."""
    newest = samples[-1]
    reserve = reserve_of(newest.total)
    left = seconds_left(samples, reserve)
    found = level_of(left, newest.part)
    if newest.loading and found > EscalationStep.WAIT:
        found = EscalationStep.STOP if left < LOADING_SECONDS else EscalationStep.WAIT
    struggles = _pressure_text(samples)
    if struggles and newest.part < WAIT_PART:
        found = max(found, EscalationStep.SAVE)
    killed = _has_killed(samples)
    if newest.available <= reserve and (left < math.inf or killed):
        found = EscalationStep.STOP
    if newest.part < WAIT_PART or killed:
        found = max(found, EscalationStep.WAIT)
    said = _amounts(newest)
    if left < math.inf:
        said += f"; this memory is used up in about {left:.0f} s at this rate"
    elif killed:
        said += "; the kernel has killed programs because memory ran out"
    elif struggles:
        said += f"; {struggles}"
    return found, said if found else ""


def level_of(left: float, part: float) -> EscalationStep:
    """Return how strongly to act when the memory will be used up in `left` seconds and the fraction
    `part` of it is available.
    """
    found = max(
        (level for level, most in SECONDS.items() if left < most), default=EscalationStep.CALM
    )
    return EscalationStep.CALM if found < EscalationStep.STOP and part > SCARCE_PART else found


def _amounts(sample: MemorySample) -> str:
    left, total = f"{sample.available / GIB:.1f}", f"{sample.total / GIB:.1f} GiB"
    if sample.of_limit:
        return f"{left} of the {total} of memory of the daemon's control group are left"
    return f"{left} of the host's {total} of memory are left"


def _pressure_text(samples: Sequence[MemorySample]) -> str | None:
    """Return a sentence if all tasks wait for memory or the kernel keeps reclaiming it, or None."""
    stalled = samples[-1].stalled_percent or 0.0
    if stalled >= STALLED_PERCENT:
        return f"all tasks waited for memory for {stalled:.0f} % of the last 10 s"
    since = samples[-1].clock - RECLAIM_SECONDS
    newest = list(samples)[-RECLAIMS:]
    lately = [*newest, *(each for each in samples if each.clock > since)]
    if len(newest) == RECLAIMS and all(each.reclaimed for each in lately):
        return "the kernel reclaims memory all the time"
    return None


def _has_killed(samples: Sequence[MemorySample]) -> bool:
    since = samples[-1].clock - LATELY_SECONDS
    return any(each.killed for each in samples if each.clock > since)


def next_act(
    level: EscalationStep, holders: Sequence[MemoryHolder], total: int, now: float
) -> MemoryAction | None:
    """Return the next action against one of the jobs `holders`; None if no action is due.

    `level` is the current level, `total` is all memory in bytes, and `now` is a monotonic time in
    seconds.
    """
    if level < EscalationStep.SAVE:
        return None
    asked = [each for each in holders if each.asked is not None]
    if level is EscalationStep.STOP:
        late = [each for each in asked if each.ended is None]
        if late:
            return MemoryAction(min(late, key=_value).job_id, at_once=True)
    last = max((_last(each) for each in asked), default=-math.inf)
    pause = HURRY_SECONDS if level is EscalationStep.STOP else PAUSE_SECONDS
    if now - last < pause:
        return None
    worth = [each for each in holders if each.asked is None and each.held >= WORTH_PART * total]
    able = [each for each in worth if each.saves or level is EscalationStep.STOP]
    if not able:
        return None
    return MemoryAction(min(able, key=_value).job_id, at_once=level is EscalationStep.STOP)


def _value(holder: MemoryHolder) -> tuple[int, float, int]:
    return holder.priority, holder.unsaved_seconds, -holder.job_id


def _last(holder: MemoryHolder) -> float:
    return max(holder.asked or -math.inf, holder.ended or -math.inf)


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """A job of this daemon on a GPU. Its "promise" is the GPU memory that the job declared or that
    it got.

    Attributes:
        over: the bytes that the job holds beyond its promise.
        to_come: the bytes of its promise that the job does not hold yet.
        grows: whether its memory use keeps growing.
    """

    holder: MemoryHolder
    over: int = 0
    to_come: int = 0
    grows: bool = False

    @property
    def loads(self) -> bool:
        """Return whether the job has not done a step yet."""
        return self.holder.loads


@dataclass(frozen=True, kw_only=True)
class GpuMemoryState:
    """The memory of one GPU, and the programs that use it.

    `jobs` are the jobs of this daemon that may be asked to save and end. `owners` is the
    number of attempts of this daemon on the GPU. `strangers` is True if other programs use
    the GPU.
    """

    outlook: GpuOutlook
    jobs: Sequence[GpuJob] = ()
    owners: int = 0
    strangers: bool = False

    @property
    def culprits(self) -> list[GpuJob]:
        """Return the jobs that exceed their promise, if other jobs of this daemon use the GPU."""
        worth = WORTH_PART * self.outlook.total
        over = [job for job in self.jobs if job.over >= worth] if self.owners > 1 else []
        return [job for job in over if job.grows] or over


def first_level(outlook: GpuOutlook) -> EscalationStep:
    """Return the level that the free memory of a GPU requires. It does not depend on which programs
    hold the used memory.
    """
    found = max(
        (r for r, most in SECONDS.items() if _seconds_left(outlook, r) < most),
        default=EscalationStep.CALM,
    )
    plenty = outlook.spare > SCARCE_PART * outlook.total
    return EscalationStep.CALM if found < EscalationStep.STOP and plenty else found


def _seconds_left(outlook: GpuOutlook, level: EscalationStep) -> float:
    return outlook.gone if level is EscalationStep.STOP else outlook.scarce


def wanted_on(now: GpuMemoryState) -> EscalationStep:
    """Return the level that the free memory of a GPU and the holders of its used memory require."""
    found = first_level(now.outlook)
    if culprits := now.culprits:
        if all(job.loads for job in culprits) and found > EscalationStep.WAIT:
            return (
                EscalationStep.STOP if now.outlook.gone < LOADING_SECONDS else EscalationStep.WAIT
            )
        return found
    if now.strangers and now.outlook.by_others < SECONDS[EscalationStep.SAVE]:
        return min(found, EscalationStep.SAVE)
    # The rest is promised: no job is placed there in any case.
    is_full = now.outlook.spare <= reserve_of(now.outlook.total)
    return EscalationStep.CALM if is_full else min(found, EscalationStep.WAIT)


def next_on(now: GpuMemoryState, most: EscalationStep, clock: float) -> MemoryAction | None:
    """Return the next action against a job on the GPU, of at most the level `most`; None if no
    action is due.

    `clock` is a monotonic time in seconds.
    """
    level = min(wanted_on(now), most)
    asked = [job for job in now.jobs if job.holder.asked is not None]
    pool = now.culprits
    if level is not EscalationStep.STOP:  # jobs that were asked before still have time
        pool = [*(pool or _short(now)), *asked]
    holders = {job.holder.job_id: job.holder for job in pool}
    return next_act(level, list(holders.values()), now.outlook.total, clock)


def _short(now: GpuMemoryState) -> list[GpuJob]:
    """Return the jobs that may still take a relevant amount of the memory promised to them."""
    return [job for job in now.jobs if job.to_come >= WORTH_PART * now.outlook.total]


def why_scarce(outlook: GpuOutlook) -> str:
    """Return how much memory of a GPU is free, as the end of a sentence "GPU 1 has ..."."""
    said = f"{outlook.free / GIB:.1f} of its {outlook.total / GIB:.1f} GiB free"
    if outlook.to_come:
        said += f"; its jobs still need {outlook.to_come / GIB:.1f} GiB"
    if outlook.gone < math.inf:
        said += f"; the free memory is used up in about {outlook.gone:.0f} s at this rate"
    return said


def why_asked(job: GpuJob, gpu: str, outlook: GpuOutlook) -> str:
    """Return the reason why the job is asked to save and end, as the end of a sentence. `gpu` is
    the name of the GPU.
    """
    head = f"stops because the memory of {gpu} runs out: "
    held = f"the job holds {job.holder.held / GIB:.1f} GiB"
    if job.over:
        held += f" ({job.over / GIB:.1f} GiB more than it declared)"
    return f"{head}{held}; {gpu} has {why_scarce(outlook)}"
