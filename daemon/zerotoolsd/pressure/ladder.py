"""What is done as the memory of the host goes: pure.

    rung    when                                               what
    WAIT    gone in 120 s and three tenths are left, or a      no job starts
            25th is left, or the kernel has ended programs
            for want of it
    SAVE    gone in 45 s and three tenths are left; or a 25th  the job of lowest value is asked to
            is left and all tasks wait for a fifth of the      save and stop
            time, or the kernel takes memory back at the
            limit of the control group at every look
    STOP    gone in 10 s, or less than the reserve is left     the job that was asked is ended; or
            and it shrinks, or the kernel ends programs        the one of lowest value, at once

A control group that has files in memory is at its limit all the time, and the kernel takes them
back: that it does so says something only where what it cannot take back has used up the rest.

While jobs load, which have not taken a step yet and hold less than the most that is expected of
them, memory goes fast and stops going: then it is STOP from 3 s on, and SAVE not at all.

Of a job that was asked its memory comes back in a while: the next is asked `PAUSE_SECONDS` later at
the earliest. Jobs start again one rung at a time, each after `CALM_SECONDS` without a reason.

The job of lowest value is that of lowest priority, and of those the one that has done least since
it saved last. Only jobs count that hold a part of the memory that is worth it, and, below STOP,
only those that are known to save. Nothing is done about programs that are not ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from zerotoolsd.config_tables.pressure_config import NOTHING, SAVE, STOP, WAIT
from zerotoolsd.pressure.forecast import LATELY_SECONDS, MemorySample, seconds_left

GIB = 1 << 30


class Rung(IntEnum):
    """How far it has come."""

    CALM = 0
    WAIT = 1
    SAVE = 2
    STOP = 3


HIGHEST = {NOTHING: Rung.CALM, WAIT: Rung.WAIT, SAVE: Rung.SAVE, STOP: Rung.STOP}
"""By `[pressure] most`."""
SECONDS = {Rung.WAIT: 120.0, Rung.SAVE: 45.0, Rung.STOP: 10.0}
LOADING_SECONDS = 3.0
SCARCE_PART = 0.3
"""Above this the slope counts for STOP alone: any program that starts takes memory fast."""
WAIT_PART = 0.04
STALLED_PERCENT = 20.0
RECLAIM_SECONDS, RECLAIMS = 3.0, 4
"""Memory was taken back before each of so many samples at least, and for so long."""
RESERVE_PART, LEAST_RESERVE = 0.02, 256 << 20
CALM_SECONDS = 15.0
PAUSE_SECONDS, HURRY_SECONDS = 20.0, 3.0
"""So long after a job was asked, or was ended, the next is looked for at the earliest."""
WORTH_PART = 0.02
"""Of all memory: what a job must hold."""


def reserve_of(total: int) -> int:
    """Bytes below which the kernel may end processes at any time."""
    return max(LEAST_RESERVE, int(RESERVE_PART * total))


@dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """A job that runs. `held` bytes; `unsaved_seconds` is what it has done since it saved last;
    `saves`: it is known to save; `loads`: it has not taken a step yet. `asked` and `ended` say when
    it was asked to save and stop, and ended (clock); None: not yet."""

    job_id: int
    priority: int
    held: int
    unsaved_seconds: float
    saves: bool = True
    loads: bool = False
    asked: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Act:
    """Ask the job to save and stop, or (`at_once`) end it."""

    job_id: int
    at_once: bool


@dataclass(frozen=True)
class Ladder:
    """Where it stands. `wanted` is what the newest sample gives reason for, as `why` says, and what
    is done to jobs goes by that; `rung` follows it down slowly, and decides who starts."""

    rung: Rung = Rung.CALM
    wanted: Rung = Rung.CALM
    why: str = ""
    calm_since: float | None = None

    def after(self, samples: Sequence[MemorySample]) -> Ladder:
        """Once the newest of `samples` is known."""
        return self.moved(*wanted_rung(samples), samples[-1].clock)

    def moved(self, wanted: Rung, why: str, now: float) -> Ladder:
        """Once there is reason for `wanted`, at `now` of the monotonic clock."""
        if wanted >= self.rung:
            return Ladder(wanted, wanted, why)
        since = now if self.calm_since is None else self.calm_since
        if now - since < CALM_SECONDS:
            return replace(self, wanted=wanted, calm_since=since, why=why or self.why)
        return Ladder(Rung(self.rung - 1), wanted, why or self.why, now)


def wanted_rung(samples: Sequence[MemorySample]) -> tuple[Rung, str]:
    """What the newest samples give reason for, and the reason in one sentence."""
    newest = samples[-1]
    reserve = reserve_of(newest.total)
    left = seconds_left(samples, reserve)
    found = rung_of(left, newest.part)
    if newest.loading and found > Rung.WAIT:
        found = Rung.STOP if left < LOADING_SECONDS else Rung.WAIT
    struggles = _how_it_struggles(samples)
    if struggles and newest.part < WAIT_PART:
        found = max(found, Rung.SAVE)
    killed = _has_killed(samples)
    if newest.available <= reserve and (left < math.inf or killed):
        found = Rung.STOP
    if newest.part < WAIT_PART or killed:
        found = max(found, Rung.WAIT)
    said = _amounts(newest)
    if left < math.inf:
        said += f", and gone in about {left:.0f} s as it goes"
    elif killed:
        said += ", and the kernel has ended programs for want of it"
    elif struggles:
        said += f", and {struggles}"
    return found, said if found else ""


def rung_of(left: float, part: float) -> Rung:
    """By how soon the memory is gone, in seconds, of which `part` is left."""
    found = max((rung for rung, most in SECONDS.items() if left < most), default=Rung.CALM)
    return Rung.CALM if found < Rung.STOP and part > SCARCE_PART else found


def _amounts(sample: MemorySample) -> str:
    left, total = f"{sample.available / GIB:.1f}", f"{sample.total / GIB:.1f} GiB"
    if sample.of_limit:
        return f"{left} of the {total} of memory of the daemon's control group are left"
    return f"{left} of the host's {total} of memory are left"


def _how_it_struggles(samples: Sequence[MemorySample]) -> str | None:
    """How the kernel tries to get memory back, where it does so all the time."""
    stalled = samples[-1].stalled_percent or 0.0
    if stalled >= STALLED_PERCENT:
        return f"all tasks waited for memory for {stalled:.0f} % of the last 10 s"
    since = samples[-1].clock - RECLAIM_SECONDS
    newest = list(samples)[-RECLAIMS:]
    lately = [*newest, *(each for each in samples if each.clock > since)]
    if len(newest) == RECLAIMS and all(each.reclaimed for each in lately):
        return "the kernel takes memory back at its limit all the time"
    return None


def _has_killed(samples: Sequence[MemorySample]) -> bool:
    since = samples[-1].clock - LATELY_SECONDS
    return any(each.killed for each in samples if each.clock > since)


def next_act(rung: Rung, holders: Sequence[MemoryHolder], total: int, now: float) -> Act | None:
    """What is to be done now; None: nothing, or not yet."""
    if rung < Rung.SAVE:
        return None
    asked = [each for each in holders if each.asked is not None]
    if rung is Rung.STOP:
        late = [each for each in asked if each.ended is None]
        if late:
            return Act(min(late, key=_value).job_id, at_once=True)
    last = max((_last(each) for each in asked), default=-math.inf)
    pause = HURRY_SECONDS if rung is Rung.STOP else PAUSE_SECONDS
    if now - last < pause:
        return None
    worth = [each for each in holders if each.asked is None and each.held >= WORTH_PART * total]
    able = [each for each in worth if each.saves or rung is Rung.STOP]
    if not able:
        return None
    return Act(min(able, key=_value).job_id, at_once=rung is Rung.STOP)


def _value(holder: MemoryHolder) -> tuple[int, float, int]:
    return holder.priority, holder.unsaved_seconds, -holder.job_id


def _last(holder: MemoryHolder) -> float:
    return max(holder.asked or -math.inf, holder.ended or -math.inf)
