"""The actions when the memory of a shared GPU is running out: pure.

    rung    when the spare memory is                           action
    WAIT    at the reserve in 120 s                            no job is placed on the GPU
    SAVE    there in 45 s                                      a job on it is asked to save and stop
    STOP    gone in 10 s                                       it is ended

with the reserve and the scarce part of the host's ladder. The driver kills no program: when the
memory is used up, the program that asks for more gets an error, regardless of which program took
the rest. So:

- A job alone on its GPU gets that error: no other job is harmed, and an allocator that
  fills the GPU with reusable memory has the same readings.
- A job is asked if it exceeds its promise by a relevant part; of those, one that still grows. It is
  ended only if this helps another job of ours. It may load its model first, until the memory is
  used up in 3 s.
- If no job exceeds its promise, but foreign programs keep growing, a job with unused promises is
  asked, and never ended: its promise will not be available. It keeps the memory that it has.
- If no program exceeds its promise, or the driver does not report the holders, no job is asked: a
  user's leak must not end another user's job.

Of several jobs, the one of lowest value is chosen, as on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerotoolsd.dispatch.memory_guard.escalation import (
    GIB,
    LOADING_SECONDS,
    SCARCE_PART,
    SECONDS,
    WORTH_PART,
    Act,
    EscalationStep,
    MemoryHolder,
    next_act,
    reserve_of,
)
from zerotoolsd.dispatch.memory_guard.gpu_forecast import GpuOutlook


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
    """One GPU. `jobs` are those of ours that may be asked, `owners` is the number of our attempts
    there. `strangers`: programs that are not ours use it."""

    look: GpuOutlook
    jobs: Sequence[GpuJob] = ()
    owners: int = 0
    strangers: bool = False

    @property
    def culprits(self) -> list[GpuJob]:
        """The jobs that exceed their promise, if that harms another job of ours."""
        worth = WORTH_PART * self.look.total
        over = [job for job in self.jobs if job.over >= worth] if self.owners > 1 else []
        return [job for job in over if job.grows] or over


def first_rung(look: GpuOutlook) -> EscalationStep:
    """Return the rung by the memory only, regardless of its holders."""
    found = max(
        (r for r, most in SECONDS.items() if _left(look, r) < most), default=EscalationStep.CALM
    )
    plenty = look.spare > SCARCE_PART * look.total
    return EscalationStep.CALM if found < EscalationStep.STOP and plenty else found


def _left(look: GpuOutlook, rung: EscalationStep) -> float:
    return look.gone if rung is EscalationStep.STOP else look.scarce


def wanted_on(now: GpuNow) -> EscalationStep:
    """Return the rung that is justified by the holders."""
    found = first_rung(now.look)
    if culprits := now.culprits:
        if all(job.loads for job in culprits) and found > EscalationStep.WAIT:
            return EscalationStep.STOP if now.look.gone < LOADING_SECONDS else EscalationStep.WAIT
        return found
    if now.strangers and now.look.by_others < SECONDS[EscalationStep.SAVE]:
        return min(found, EscalationStep.SAVE)
    # The rest is promised: no job is placed there in any case.
    is_full = now.look.spare <= reserve_of(now.look.total)
    return EscalationStep.CALM if is_full else min(found, EscalationStep.WAIT)


def next_on(now: GpuNow, most: EscalationStep, clock: float) -> Act | None:
    """Return the next action, limited to `most`; None until the first."""
    rung = min(wanted_on(now), most)
    asked = [job for job in now.jobs if job.holder.asked is not None]
    pool = now.culprits
    if rung is not EscalationStep.STOP:  # jobs that were asked before still have time
        pool = [*(pool or _short(now)), *asked]
    holders = {job.holder.job_id: job.holder for job in pool}
    return next_act(rung, list(holders.values()), now.look.total, clock)


def _short(now: GpuNow) -> list[GpuJob]:
    """Return the jobs with an unused promise of a relevant size."""
    return [job for job in now.jobs if job.to_come >= WORTH_PART * now.look.total]


def why_scarce(look: GpuOutlook) -> str:
    """Return the free memory in one sentence without its begin: "GPU 1 has "."""
    said = f"{look.free / GIB:.1f} of its {look.total / GIB:.1f} GiB free"
    if look.to_come:
        said += f", and its jobs still need {look.to_come / GIB:.1f}"
    if look.gone < math.inf:
        said += f", and they are gone in about {look.gone:.0f} s as it goes"
    return said


def why_asked(job: GpuJob, gpu: str, look: GpuOutlook) -> str:
    """Return why the job is asked to yield, in one sentence without its begin."""
    head = f"stops because the memory of {gpu} runs out: "
    held = f"it holds {job.holder.held / GIB:.1f} GiB"
    if job.over:
        held += f", {job.over / GIB:.1f} more than it declared"
    return f"{head}{held}, and {gpu} has {why_scarce(look)}"
