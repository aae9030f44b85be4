"""The phases of a rank, and how long it may stay in one without progress.

A healthy job must never be ended, even if its disk is slow and its model large. So a deadline
limits the time without progress in a phase, not the duration of the phase: each step and each
evaluated batch restarts the deadline. While a rank reads, writes or computes in a phase without
measurable progress, only a sixth of the time counts (`EASED`). On GPUs the time in collectives
(`COLLECTIVE`) counts fully: a rank that waits in an NCCL collective spins, and seems busy.

NCCL hangs forever if two GPUs cannot copy to one another. So the ranks do one collective before
everything else (`CONNECTING`). In this phase no rank compiles or reads anything, so the deadline
can be as short as `CONNECT_SECONDS`. If every rank waits for the others in the first step, the
deadline of a step applies, but at least `CONNECT_SECONDS`.

The deadline of a step is `factor` times the median of the steps before it, and at least a fixed
time. Example: a job with steps of 0.4 s is ended after 10 minutes without a step, a job with steps
of 40 s after 80 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

START, DATA, STEP, EVALUATION, SAVE = "start", "data", "step", "evaluation", "save"
KINDS = (START, DATA, STEP, EVALUATION, SAVE)
"""The kinds of deadlines. They are the keys of the table `[stall]` in a job file, such as
`start_limit`.
"""
COMPLETE = "complete"
"""Name of the phase, and of its deadline, after a program has reported that its job is
complete.
"""
SILENCE = "silence"
"""Name of the deadline for a program that neither reports its progress nor prints anything."""

IMPORTING_TORCH = "importing torch"
"""Name of the phase in which a rank imports torch and cannot report its progress yet. Users see
this name.
"""
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
"""The kind of deadline for each phase, in the order of the phases in a training run."""
NAMES = tuple(PHASES)
COLLECTIVE = (CONNECTING, FIRST_STEP, EVALUATING)
"""Phases without measurable progress in which the first collectives of NCCL often run."""
CONNECT_SECONDS = 600.0
"""Longest duration of the first collective, in seconds. The time begins when the last rank
arrives at it.
"""

EASED = 6
"""The time in which a rank works in a phase without measurable progress is divided by this
number.
"""
END, REPORT, OFF = "end", "report", "off"


class StallLimits(NamedTuple):
    """The action at a stall, and the longest time without progress in each kind of phase, in
    seconds (None: no limit).

    `on_gpus` is True if the ranks belong to the built-in trainer and use GPUs. `sees_all` is True
    if all ranks of the job run on this machine.
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
        """Return the stall limits from the plan of an attempt (`tree`). If the plan contains no
        limits, stalls are not detected.
        """
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
        """Return whether only a sixth (`EASED`) of the time that a rank works in `phase` counts
        towards the deadline.
        """
        return PHASES.get(phase) != STEP and not (self.on_gpus and phase in COLLECTIVE)

    def deadline(
        self, phase: str, step_seconds: float | None, *, all_wait: bool = False
    ) -> float | None:
        """Return the longest time, in seconds, that a rank may be in `phase` without progress;
        None if the time is not limited.

        `step_seconds` is the duration of a training step. `all_wait` is True if every known
        rank waits for the others.
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
