"""What is done as the memory of a GPU goes that several share: pure.

    rung    when what is spare is                              what
    WAIT    at the reserve in 120 s                            nothing more is placed on the GPU
    SAVE    there in 45 s                                      a job on it is asked to save and stop
    STOP    gone in 10 s                                       it is ended

with the reserve and the scarce part of the host's ladder. The driver ends nobody: where the memory
is gone, the program that asks for more gets an error, whoever has taken the rest. So:

- A job that is alone on its GPU is left to that error: nobody else is harmed by it, and an
  allocator that fills the GPU with what it may use again looks the same from here.
- Who is asked is one that holds more than it was promised, by a part that is worth it: of those,
  one that takes more still. It is ended only where another job of ours is there to be spared. Its
  model it may load first, until the memory is gone in 3 s.
- Where none does, but programs take more and more that are not ours, a job is asked, and never
  ended, that was promised more than it has: that will not be there. What one has already, nobody
  takes from it.
- Where nobody holds more than it was promised, or the driver does not say who holds what, no job is
  asked: nobody shall have another's job ended by a leak of their own.

Of several, the one of lowest value, as on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerotoolsd.pressure.gpu_forecast import GpuOutlook
from zerotoolsd.pressure.ladder import (
    GIB,
    LOADING_SECONDS,
    SCARCE_PART,
    SECONDS,
    WORTH_PART,
    Act,
    MemoryHolder,
    Rung,
    next_act,
    reserve_of,
)


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """A job of ours on the GPU: it holds `over` bytes more than it was promised, is promised
    `to_come` more, and `grows`."""

    holder: MemoryHolder
    over: int = 0
    to_come: int = 0
    grows: bool = False

    @property
    def loads(self) -> bool:
        """Whether it has not taken a step yet."""
        return self.holder.loads


@dataclass(frozen=True, kw_only=True)
class GpuNow:
    """One GPU. `jobs` are those of ours that may be asked, `owners` how many attempts of ours are
    there, and `strangers`: programs are there that are not ours."""

    look: GpuOutlook
    jobs: Sequence[GpuJob] = ()
    owners: int = 0
    strangers: bool = False

    @property
    def culprits(self) -> list[GpuJob]:
        """Those that hold more than they were promised, where that harms another job of ours."""
        worth = WORTH_PART * self.look.total
        over = [job for job in self.jobs if job.over >= worth] if self.owners > 1 else []
        return [job for job in over if job.grows] or over


def first_rung(look: GpuOutlook) -> Rung:
    """By the memory alone, whoever takes it."""
    found = max((r for r, most in SECONDS.items() if _left(look, r) < most), default=Rung.CALM)
    plenty = look.spare > SCARCE_PART * look.total
    return Rung.CALM if found < Rung.STOP and plenty else found


def _left(look: GpuOutlook, rung: Rung) -> float:
    return look.gone if rung is Rung.STOP else look.scarce


def wanted_on(now: GpuNow) -> Rung:
    """What there is reason for, by who is there."""
    found = first_rung(now.look)
    if culprits := now.culprits:
        if all(job.loads for job in culprits) and found > Rung.WAIT:
            return Rung.STOP if now.look.gone < LOADING_SECONDS else Rung.WAIT
        return found
    if now.strangers and now.look.by_others < SECONDS[Rung.SAVE]:
        return min(found, Rung.SAVE)
    # What is left is promised: nothing more is placed there in any case.
    is_full = now.look.spare <= reserve_of(now.look.total)
    return Rung.CALM if is_full else min(found, Rung.WAIT)


def next_on(now: GpuNow, most: Rung, clock: float) -> Act | None:
    """What is to be done now, and no more than `most`; None: nothing, or not yet."""
    rung = min(wanted_on(now), most)
    asked = [job for job in now.jobs if job.holder.asked is not None]
    pool = now.culprits
    if rung is not Rung.STOP:  # whoever was asked before has time
        pool = [*(pool or _short(now)), *asked]
    holders = {job.holder.job_id: job.holder for job in pool}
    return next_act(rung, list(holders.values()), now.look.total, clock)


def _short(now: GpuNow) -> list[GpuJob]:
    """Those that are promised more than they have, by a part that is worth it."""
    return [job for job in now.jobs if job.to_come >= WORTH_PART * now.look.total]


def why_scarce(look: GpuOutlook) -> str:
    """How much is left, in one sentence without its begin: "GPU 1 has "."""
    said = f"{look.free / GIB:.1f} of its {look.total / GIB:.1f} GiB free"
    if look.to_come:
        said += f", of which its jobs are promised {look.to_come / GIB:.1f}"
    if look.gone < math.inf:
        said += f", and they are gone in about {look.gone:.0f} s as it goes"
    return said


def why_asked(job: GpuJob, gpu: str, look: GpuOutlook) -> str:
    """Why the job is asked to make room, in one sentence without its begin."""
    head = f"makes room as the memory of {gpu} runs out: "
    held = f"it holds {job.holder.held / GIB:.1f} GiB"
    if job.over:
        held += f", {job.over / GIB:.1f} more than it declared"
    return f"{head}{held}, and {gpu} has {why_scarce(look)}"
