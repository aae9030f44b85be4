"""Decides whether an attempt stalls (makes no progress), and names the rank that the others wait
for. No I/O: the time is an argument.

The supervisor measures time by its own calls: between two calls, at most `MOST_BETWEEN` seconds are
counted. So a change of the system clock has no effect, and almost no time is counted while the
machine sleeps, or while the job and its supervisor are stopped.

The time without progress of an attempt is counted from the newest report of any rank, because all
other ranks may be waiting for that rank. The attempt stalls when this time exceeds the deadline of
the rank that the others wait for. If that rank is unknown, the time must exceed the deadlines of
all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat
from zerotoolsd.supervisor.heartbeats.stall_limits import (
    COLLECTIVE,
    COMPLETE,
    CONNECTING,
    DATA,
    EASED,
    EVALUATING,
    FIRST_STEP,
    PHASES,
    SAVING,
    SILENCE,
    START,
    STEPPING,
    StallLimits,
)
from zerotoolsd.supervisor.procfs import Activity

MOST_BETWEEN = 5.0
REMEMBERED = 50
"""Number of the newest training steps from which the median duration is computed."""
_WORKS = 0.1
"""A rank counts as working if it uses at least this fraction of the time of one processor."""


class AttemptStall(NamedTuple):
    """A stall: the attempt made no progress for `seconds`, which is longer than its `deadline` in
    seconds.

    `rank` is the rank that the others wait for; None if unknown. `is_silent` is True if progress
    cannot be measured in the current phases, and the ranks neither reported nor printed anything.
    """

    rank: int | None
    seconds: float
    deadline: float
    is_silent: bool = False


class _Known:
    def __init__(self, beat: Beat) -> None:
        self.beat = beat
        self.quiet = 0.0
        self.charged = 0.0
        self.seen: Activity | None = None
        self.seen_at = 0.0
        self.works = False


class StallDetector:
    """Measures how long each rank made no progress. Call `update` about once a second."""

    def __init__(self, limits: StallLimits) -> None:
        self.limits = limits
        self._known: dict[int, _Known] = {}
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._step, self._since_step, self._stepping = 0, 0.0, 0.0
        self._last: float | None = None
        self.has_stepped = False
        self.silent = 0.0
        """Seconds since any rank reported or printed anything."""

    @property
    def step_seconds(self) -> float | None:
        """Return the median seconds of the newest training steps; None before the first step."""
        # The module `statistics` would take a megabyte of each supervisor.
        return sorted(self._steps)[len(self._steps) // 2] if self._steps else None

    @property
    def since_step(self) -> float:
        """Return the seconds since the last finished training step. Before the first step,
        return the seconds since the start.
        """
        return self._since_step

    def update(
        self, beats: Mapping[int, Beat], now: float, activities: Mapping[int, Activity | None]
    ) -> list[RankState]:
        """Update the states of the running ranks and return them. `now` is the current time in
        seconds.

        `beats` has the newest heartbeat of each rank. `activities` has the process state from /proc
        of each rank that has sent no heartbeat for a while.
        """
        passed = 0.0 if self._last is None else min(max(0.0, now - self._last), MOST_BETWEEN)
        self._last = now
        self.silent += passed
        for rank in self._known.keys() - beats.keys():
            del self._known[rank]
        for rank, beat in beats.items():
            self._update_rank(rank, beat, passed, activities.get(rank))
        self._count_steps(beats, passed)
        return [
            RankState(rank, known.beat, known.quiet, activities.get(rank))
            for rank, known in sorted(self._known.items())
        ]

    def reset_silence(self) -> None:
        """Record that a process of the attempt has reported or printed something."""
        self.silent = 0.0

    def _update_rank(self, rank: int, beat: Beat, passed: float, activity: Activity | None) -> None:
        known = self._known.get(rank)
        if known is None or beat.number != known.beat.number:
            self._known[rank] = _Known(beat)
            self.reset_silence()
            return
        known.quiet += passed
        known.charged += passed * self._weight(known, activity)

    def _weight(self, known: _Known, activity: Activity | None) -> float:
        """Return the weight of elapsed time for one rank, from 0 to 1: which fraction of it counts
        towards the rank's deadline.
        """
        if activity is None:
            return 1.0
        if activity.tracer:
            return 0.0  # a debugger is attached
        if activity is not known.seen:  # a new measurement: compare it with the last
            since = known.quiet - known.seen_at
            known.works = known.seen is not None and (
                activity.work - known.seen.work >= _WORKS * since
            )
            known.seen, known.seen_at = activity, known.quiet
        is_eased = known.works and self.limits.is_eased(known.beat.phase)
        return 1.0 / EASED if is_eased else 1.0

    def _count_steps(self, beats: Mapping[int, Beat], passed: float) -> None:
        """Update the measured duration of a training step. `passed` is the elapsed time in
        seconds.

        Only time that ranks spend in training steps counts, and only after the first step.
        """
        newest = max((beat.step for beat in beats.values()), default=0)
        self._since_step += passed
        if any(beat.phase == STEPPING for beat in beats.values()):
            self._stepping += passed
        if newest <= self._step:
            return
        if any(PHASES[beat.phase] != START or beat.phase == FIRST_STEP for beat in beats.values()):
            self.has_stepped = True  # else it is the step from which the run continues
        if self._step and self._stepping:
            self._steps.append(self._stepping / (newest - self._step))
        self._step, self._since_step, self._stepping = newest, 0.0, 0.0

    def stall(self, sights: Sequence[RankState]) -> AttemptStall | None:
        """Return the stall of the attempt; None if it is not stalled. `sights` is the result of
        the last call of `update`.
        """
        silence = (self.limits.seconds or {}).get(SILENCE)
        if silence is not None and self.silent >= silence:
            return AttemptStall(None, self.silent, silence, is_silent=True)
        if not self._known:
            return None
        charged = min(known.charged for known in self._known.values())
        late = straggler_of(sights)
        deadline = self.deadline([late] if late is not None else sights)
        if deadline is None or charged < deadline:
            return None
        quiet = [sight.quiet for sight in sights if late is None or sight.rank == late.rank]
        return AttemptStall(None if late is None else late.rank, min(quiet), deadline)

    def deadline(self, sights: Sequence[RankState]) -> float | None:
        """Return the longest deadline among the ranks in `sights`, in seconds; None if one of the
        ranks has no deadline.
        """
        all_wait = all(known.beat.waits for known in self._known.values())
        found = [
            self.limits.deadline(sight.beat.phase, self.step_seconds, all_wait=all_wait)
            for sight in sights
        ]
        known = [each for each in found if each is not None]
        return max(known) if known and len(known) == len(found) else None


NCCL_ADVICE = (
    "if the GPUs cannot copy to one another, NCCL hangs here, with each GPU at 100 % and little "
    'power in zerotools monitor: try env.NCCL_P2P_DISABLE = "1", and env.NCCL_DEBUG = "INFO" to '
    "see the transports in use; zerotools help use-consumer-cards"
)
_NOTABLE = 2.0
"""After this many seconds without a heartbeat, the sentence about a stall contains the process
state of the rank from /proc.
"""


class RankState(NamedTuple):
    """The state of one rank: its last heartbeat, the seconds since that heartbeat, and its process
    state from /proc (None: not read).
    """

    rank: int
    beat: Beat
    quiet: float
    activity: Activity | None = None


def straggler_of(sights: Sequence[RankState]) -> RankState | None:
    """Return the rank that the other ranks wait for (the straggler); None if it is unknown."""
    if not sights:
        return None
    newest = max(sight.beat.step for sight in sights)
    trained = all(PHASES[sight.beat.phase] not in (START, DATA, COMPLETE) for sight in sights)
    rules: tuple[Callable[[RankState], bool], ...] = (
        lambda sight: _state(sight) in ("T", "t"),
        lambda sight: _state(sight) == "D",
        lambda sight: trained and sight.beat.step < newest,
    )
    for rule in rules:
        found = [sight for sight in sights if sight.quiet >= _NOTABLE and rule(sight)]
        if found and (len(found) < len(sights) or len(sights) == 1):
            return found[0]
    if _are_complete(sights):
        return min(sights, key=lambda sight: sight.quiet)
    busy = [sight for sight in sights if not sight.beat.waits]
    return busy[0] if len(busy) == 1 and busy[0].quiet >= _NOTABLE else None


def hangs_together(sights: Sequence[RankState]) -> bool:
    """Return whether there are several ranks, and the phase of each is one of `COLLECTIVE`. The
    first collectives often run in these phases.
    """
    return len(sights) > 1 and all(sight.beat.phase in COLLECTIVE for sight in sights)


def _are_complete(sights: Sequence[RankState]) -> bool:
    return bool(sights) and all(sight.beat.phase == COMPLETE for sight in sights)


def _state(sight: RankState) -> str:
    return "" if sight.activity is None else sight.activity.state


def activity_text(beat: Beat) -> str:
    """Return the activity in a rank's heartbeat as text: `step 812`, `the all-reduce of step
    812`, `loading step 40`.
    """
    place = {
        CONNECTING: "the first collective",
        STEPPING: f"step {beat.step + 1}",
        FIRST_STEP: "its first step",
        EVALUATING: f"the evaluation after step {beat.step}" if beat.step else "the evaluation",
        SAVING: f"the save of step {beat.step}",
    }.get(beat.phase)
    if place is None:
        return beat.doing or beat.phase
    return f"the {beat.doing} of {place}" if beat.doing and beat.waits else place


def stall_sentence(sights: Sequence[RankState], rank: int | None) -> str:
    """Return a sentence that describes a stall. `rank` is the rank that the others wait for;
    None if unknown.

    Example: `rank 2 has been in the all-reduce of step 812 for 31 min; the others wait for
    it`.
    """
    late = next((sight for sight in sights if sight.rank == rank), None)
    if _are_complete(sights):
        quiet = format_duration(min(sight.quiet for sight in sights))
        state = "" if late is None else _process_state_text(late)
        return f"it reported that it is complete, and has not ended for {quiet}{state}"
    if late is not None:
        alone = len(sights) == 1
        who = "it" if alone else f"rank {late.rank}"
        tail = "" if alone else "; the others wait for it"
        place = f"{activity_text(late.beat)} for {format_duration(late.quiet)}"
        return f"{who} has been in {place}{_process_state_text(late)}{tail}"
    shortest = format_duration(min((sight.quiet for sight in sights), default=0.0))
    places = {activity_text(sight.beat) for sight in sights}
    if len(places) == 1:
        how = {_process_state_text(sight).replace(": it ", ": each ") for sight in sights}
        told = how.pop() if len(how) == 1 else ""
        return f"all {len(sights)} ranks have been in {places.pop()} for {shortest}{told}"
    each = ", ".join(f"rank {sight.rank} is in {activity_text(sight.beat)}" for sight in sights[:8])
    return f"no rank has got any further for {shortest}: {each}"


def _process_state_text(sight: RankState) -> str:
    if sight.activity is None or sight.activity.state not in "TtD":
        return ""
    return f": it {sight.activity.words}"


def format_duration(seconds: float) -> str:
    """Format a duration that is given in seconds: `40 s`, `31 min`, `2 h 05 min`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
