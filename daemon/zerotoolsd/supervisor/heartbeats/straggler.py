"""Names the rank that the others wait for (the straggler), and makes the sentence on a stall.

The first rule that matches decides. The straggler is stopped (a signal, a debugger); it waits in
the kernel and cannot be interrupted; it is a step behind; it is the only one that does not wait for
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerotoolsd.supervisor.heartbeats.rank_activity import Activity
from zerotoolsd.supervisor.heartbeats.rank_phases import (
    COLLECTIVE,
    COMPLETE,
    CONNECTING,
    DATA,
    EVALUATING,
    FIRST_STEP,
    PHASES,
    SAVING,
    START,
    STEPPING,
)
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat

NCCL_ADVICE = (
    "if the GPUs cannot copy to one another, NCCL hangs here, with each GPU at 100 % and little "
    'power in zerotools monitor: try env.NCCL_P2P_DISABLE = "1", and env.NCCL_DEBUG = "INFO" to '
    "see the transports in use; zerotools help use-consumer-cards"
)
_NOTABLE = 2.0
"""Seconds of silence after which the kernel's state of a rank means something."""


@dataclass(frozen=True)
class Sight:
    """One rank: its last line, the seconds since it changed, and the kernel's state, if that was
    read."""

    rank: int
    beat: Beat
    quiet: float
    activity: Activity | None = None


def awaited(sights: Sequence[Sight]) -> Sight | None:
    """Return the rank that the others wait for; None if it is unknown or nothing is wrong."""
    if not sights:
        return None
    newest = max(sight.beat.step for sight in sights)
    trained = all(PHASES[sight.beat.phase] not in (START, DATA, COMPLETE) for sight in sights)
    rules: tuple[Callable[[Sight], bool], ...] = (
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


def hangs_together(sights: Sequence[Sight]) -> bool:
    """Whether several ranks are all where their first collectives are."""
    return len(sights) > 1 and all(sight.beat.phase in COLLECTIVE for sight in sights)


def _are_complete(sights: Sequence[Sight]) -> bool:
    return bool(sights) and all(sight.beat.phase == COMPLETE for sight in sights)


def _state(sight: Sight) -> str:
    return "" if sight.activity is None else sight.activity.state


def what(beat: Beat) -> str:
    """Describe the activity of a rank: `step 812`, `the all-reduce of step 812`, `loading step
    40`."""
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


def sentence(sights: Sequence[Sight], rank: int | None) -> str:
    """Return the sentence on a stall.

    Example: `rank 2 has been in the all-reduce of step 812 for 31 min; the others wait for it`.
    """
    late = next((sight for sight in sights if sight.rank == rank), None)
    if _are_complete(sights):
        quiet = duration(min(sight.quiet for sight in sights))
        state = "" if late is None else _how(late)
        return f"it reported that it is complete, and has not ended for {quiet}{state}"
    if late is not None:
        alone = len(sights) == 1
        who = "it has" if alone else f"rank {late.rank} has"
        tail = "" if alone else "; the others wait for it"
        return f"{who} been in {what(late.beat)} for {duration(late.quiet)}{_how(late)}{tail}"
    shortest = duration(min((sight.quiet for sight in sights), default=0.0))
    places = {what(sight.beat) for sight in sights}
    if len(places) == 1:
        how = {_how(sight).replace(": it ", ": each ") for sight in sights}
        told = how.pop() if len(how) == 1 else ""
        return f"all {len(sights)} ranks have been in {places.pop()} for {shortest}{told}"
    each = ", ".join(f"rank {sight.rank} is in {what(sight.beat)}" for sight in sights[:8])
    return f"no rank has got any further for {shortest}: {each}"


def _how(sight: Sight) -> str:
    if sight.activity is None or sight.activity.state not in "TtD":
        return ""
    return f": it {sight.activity.words}"


def duration(seconds: float) -> str:
    """Format a duration: `40 s`, `31 min`, `2 h 05 min`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
