"""The phases of a rank, and how long it may stay in one without progress.

A healthy job must never be ended, however slow its disk and large its model. So a deadline limits
the time without progress in a phase, not the phase: each step and each evaluated batch restarts it.
While a rank reads, writes or computes in a phase without measurable progress, its time counts a
sixth (`EASED`). On GPUs the time of collectives (`COLLECTIVE`) counts in full: a rank in a
collective of NCCL spins while it waits, and seems busy.

NCCL hangs for ever where two GPUs cannot copy to one another. So the ranks do one collective before
all else (`CONNECTING`), for which none of them compiles or reads anything, and which has
`CONNECT_SECONDS`. A first step with every rank waiting for the others has the deadline of a step,
and at least so long.

A step has `factor` times the median of the steps before it, and at least its deadline. Example: a
run of 0.4 s a step is ended after 10 minutes without one, a run of 40 s a step after 80 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

START, DATA, STEP, EVALUATION, SAVE = "start", "data", "step", "evaluation", "save"
KINDS = (START, DATA, STEP, EVALUATION, SAVE)
"""Names of the deadlines: the keys `start_limit` and so on in `[stall]` of a job file."""
COMPLETE = "complete"
"""The deadline of a program that has reported that the job is complete; also its phase."""
SILENCE = "silence"
"""The key of the deadline for a program that is silent: it neither reports nor prints."""

IMPORTING_TORCH = "importing torch"
"""The phase that a rank reports before it has a reporter, as users read it."""
STARTING, CONNECTING = "starting", "connecting"
FIRST_STEP, STEPPING = "first step", "step"
EVALUATING, SAVING = "evaluating", "saving"
PHASES: Mapping[str, str] = {
    STARTING: START,
    "importing": START,
    "meeting the other ranks": START,
    CONNECTING: START,
    "preparing": START,
    "reading the data": DATA,
    "loading": START,
    "compiling": START,
    FIRST_STEP: START,
    STEPPING: STEP,
    EVALUATING: EVALUATION,
    SAVING: SAVE,
    "finishing": START,
    COMPLETE: COMPLETE,
}
"""The deadline of each phase, in the order in which a run goes through them."""
NAMES = tuple(PHASES)
COLLECTIVE = (CONNECTING, FIRST_STEP, EVALUATING)
"""Phases without measurable progress in which NCCL's first collectives often run."""
CONNECT_SECONDS = 600.0
"""Longest duration of the first collective, from the arrival of the last rank."""

EASED = 6
"""Divisor of a rank's working time in a phase without measurable progress."""
END, REPORT, OFF = "end", "report", "off"


@dataclass(frozen=True)
class StallLimits:
    """The action at a stall, and the deadlines of each kind in seconds (None: no deadline).

    `on_gpus`: the ranks are the built-in trainer's, on GPUs. `sees_all`: no other machine has ranks
    of the job.
    """

    action: str = OFF
    seconds: Mapping[str, float | None] | None = None
    factor: float = 0.0
    on_gpus: bool = False
    sees_all: bool = True

    @classmethod
    def from_plan(
        cls, tree: Mapping[str, object], *, on_gpus: bool = False, sees_all: bool = True
    ) -> StallLimits:
        """Return the limits in an attempt's plan. Without any, stalls are not detected."""
        seconds = {name: tree.get(name) for name in (*KINDS, COMPLETE, SILENCE)}
        numbers = {name: float(v) for name, v in seconds.items() if isinstance(v, (int, float))}
        factor = tree.get("factor")
        action = tree.get("action")
        return cls(
            action if action in (END, REPORT) else OFF,
            numbers,
            float(factor) if isinstance(factor, (int, float)) else 0.0,
            on_gpus,
            sees_all,
        )

    def is_eased(self, phase: str) -> bool:
        """Return whether the time that a rank works in `phase` counts only a sixth (`EASED`)."""
        return PHASES.get(phase) != STEP and not (self.on_gpus and phase in COLLECTIVE)

    def deadline(
        self, phase: str, step_seconds: float | None, *, all_wait: bool = False
    ) -> float | None:
        """Return how many seconds a rank may be in `phase` without progress; None: no deadline.

        `step_seconds` is the duration of a step. `all_wait`: every known rank waits for the others.
        """
        kind, seconds = PHASES.get(phase, START), self.seconds or {}
        limit = seconds.get(kind)
        if limit is not None and phase == CONNECTING:
            return min(limit, CONNECT_SECONDS)
        step = seconds.get(STEP)
        hangs = all_wait and self.on_gpus and self.sees_all and phase == FIRST_STEP
        if hangs and limit is not None and step is not None:
            return min(limit, max(step, CONNECT_SECONDS))
        if limit is None or kind != STEP or step_seconds is None:
            return limit
        return max(limit, self.factor * step_seconds)
