"""When ranks that say nothing new stall, by a clock of the test's own."""

from __future__ import annotations

from typing import Any

import pytest

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat
from zerotoolsd.supervisor.heartbeats.stall_detector import (
    NCCL_ADVICE,
    AttemptStall,
    RankState,
    StallDetector,
    format_duration,
    hangs_together,
    stall_sentence,
    straggler_of,
)
from zerotoolsd.supervisor.heartbeats.stall_limits import StallLimits
from zerotoolsd.supervisor.procfs import Activity

SECONDS = {"start": 7200, "data": 7200, "step": 600, "evaluation": 1800, "save": 7200}


class Clocked:
    """An attempt of ranks that do what the test says, looked at once a second."""

    def __init__(
        self,
        ranks: int = 2,
        phase: str = "step",
        *,
        on_gpus: bool = False,
        sees_all: bool = True,
        **limits: Any,
    ) -> None:
        tree = {"action": "end", "factor": 120, **SECONDS, **limits}
        limit = StallLimits.from_plan(tree, on_gpus=on_gpus, sees_all=sees_all)
        self.attention = StallDetector(limit)
        self.beats = {rank: Beat(1, phase) for rank in range(ranks)}
        self.activities: dict[int, Activity | None] = {}
        self.now = 1000.0
        self.sights: list[RankState] = []
        self.look()

    def look(self, between: float = 1.0) -> AttemptStall | None:
        self.now += between
        self.sights = self.attention.update(self.beats, self.now, self.activities)
        return self.attention.stall(self.sights)

    def pass_seconds(self, seconds: int) -> AttemptStall | None:
        found = None
        for _ in range(seconds):
            found = self.look()
        return found

    def beat(self, *ranks: int, **changes: Any) -> None:
        for rank in ranks or self.beats:
            before = self.beats[rank]
            self.beats[rank] = before._replace(number=before.number + 1, **changes)

    def steps(self, count: int, seconds: int) -> None:
        for _ in range(count):
            self.pass_seconds(seconds - 1)
            self.beat(step=self.beats[0].step + 1)
            self.look()


def test_a_step_that_takes_longer_than_its_deadline_is_a_stall() -> None:
    it = Clocked()
    it.steps(20, 2)
    assert it.pass_seconds(599) is None
    it.beats[1] = it.beats[1]._replace()
    found = it.look()
    assert found == AttemptStall(None, 600.0, 600.0)


def test_slow_steps_have_a_longer_deadline_and_one_that_is_a_hundred_times_slower_passes() -> None:
    it = Clocked()
    it.steps(20, 10)
    assert it.attention.step_seconds == 10.0
    assert it.pass_seconds(1000) is None, "a hundred times the median"
    it.beat(step=it.beats[0].step + 1)
    assert it.look() is None
    assert it.attention.step_seconds == 10.0, "one slow step changes no median"
    assert it.pass_seconds(1199) is None
    assert it.look() is not None


def test_the_attempt_gets_on_while_any_rank_does() -> None:
    it = Clocked(phase="evaluating", evaluation=30)
    for _ in range(200):
        it.beat(0)
        assert it.look() is None, "rank 1 waits for it"
    assert it.pass_seconds(29) is None
    assert it.look() is not None


def test_time_between_steps_is_not_that_of_steps() -> None:
    it = Clocked()
    it.steps(10, 4)
    it.beat(phase="evaluating")
    assert it.pass_seconds(900) is None
    it.beat(phase="step")
    it.steps(5, 4)
    assert it.attention.step_seconds == 4.0


def test_time_in_which_nobody_looked_does_not_count() -> None:
    it = Clocked()
    for between in (86400.0, -86400.0, 1e9):  # asleep, or a clock that was set
        assert it.look(between) is None
    assert it.sights[0].quiet <= 15.0
    assert it.pass_seconds(580) is None


def test_a_rank_that_works_where_it_cannot_say_how_far_has_six_times_as_long() -> None:
    it = Clocked(ranks=1, phase="saving", save=60)
    for second in range(300):
        it.activities = {0: Activity("D", work=second * 0.2)}
        assert it.look() is None, second
    assert it.sights[0].quiet == 300.0, "what is shown is the whole time"
    found = None
    for _ in range(20):
        it.activities = {0: Activity("D", work=60.0)}
        found = it.look()
    assert found is not None


def test_an_old_look_at_what_a_rank_does_counts_until_the_next() -> None:
    it = Clocked(ranks=1, phase="saving", save=60)
    for second in range(300):
        if second % 4 == 0:
            it.activities = {0: Activity("D", work=second * 0.2)}
        assert it.look() is None, second


def test_work_within_a_step_is_no_progress() -> None:
    it = Clocked(ranks=1)
    for second in range(599):
        it.activities = {0: Activity("R", work=float(second))}
        assert it.look() is None
    assert it.look() is not None, "NCCL waits at full speed"


@pytest.mark.parametrize(
    ("phase", "on_gpus", "is_eased"),
    [
        ("first step", True, False),
        ("evaluating", True, False),
        ("first step", False, True),
        ("evaluating", False, True),
        ("loading", True, True),
        ("saving", True, True),
    ],
)
def test_a_rank_that_spins_in_a_collective_on_a_gpu_does_not_work(
    phase: str, on_gpus: bool, is_eased: bool
) -> None:
    it = Clocked(phase=phase, on_gpus=on_gpus, start=60, evaluation=60, save=60)
    found = None
    for second in range(61):
        it.activities = {rank: Activity("R", work=float(second)) for rank in (0, 1)}
        found = it.look()
    assert (found is None) is is_eased


@pytest.mark.parametrize(("start", "deadline"), [(7200, 600), (120, 120), (None, None)])
def test_the_first_collective_has_ten_minutes(start: int | None, deadline: int | None) -> None:
    it = Clocked(phase="connecting", on_gpus=True, start=start)
    assert it.pass_seconds((deadline or 700) - 1) is None
    found = it.look()
    assert (found and found.deadline) == deadline


@pytest.mark.parametrize(
    ("waiting", "limits", "deadline"),
    [
        ((0, 1), {}, 600),
        ((0, 1), {"step": 900}, 900),
        ((0, 1), {"step": 30}, 600),
        ((0, 1), {"step": None}, 7200),
        ((0, 1), {"start": 60}, 60),
        ((0,), {}, 7200),  # the other rank compiles
        ((0, 1), {"on_gpus": False}, 7200),
        ((0, 1), {"sees_all": False}, 7200),  # ranks of another machine may compile
    ],
)
def test_a_first_step_in_which_every_rank_waits_has_the_deadline_of_a_step(
    waiting: tuple[int, ...], limits: dict[str, Any], deadline: int
) -> None:
    it = Clocked(phase="first step", **{"on_gpus": True, **limits})
    it.beat(*waiting, waits=True, doing="all-reduce")
    it.look()
    assert it.attention.deadline(it.sights) == deadline


def test_time_in_a_debugger_does_not_count() -> None:
    it = Clocked(ranks=1)
    it.activities = {0: Activity("t", tracer=77)}
    assert it.pass_seconds(5000) is None
    it.activities = {}
    assert it.pass_seconds(599) is None
    assert it.look() is not None


def test_a_phase_without_a_deadline_never_stalls() -> None:
    it = Clocked(step=None)
    assert it.pass_seconds(5000) is None


def test_silence_counts_from_the_last_sign() -> None:
    it = Clocked(ranks=0, silence=60)
    assert it.pass_seconds(50) is None
    it.attention.reset_silence()
    assert it.pass_seconds(59) is None
    assert it.look() == AttemptStall(None, 60.0, 60.0, is_silent=True)


def test_the_deadline_is_that_of_the_rank_that_is_waited_for() -> None:
    it = Clocked(save=5000)
    it.steps(3, 1)
    it.beat(0, phase="saving", waits=True)
    it.beat(1)
    found = it.pass_seconds(601)
    assert found is not None
    assert (found.rank, found.deadline) == (1, 600.0)


def test_the_step_that_a_run_goes_on_from_is_none_of_its_own() -> None:
    it = Clocked(phase="loading")
    it.beat(step=40)
    it.look()
    assert not it.attention.has_stepped
    it.beat(phase="first step")
    it.steps(1, 3)
    assert it.attention.has_stepped


def sight(
    rank: int,
    step: int = 811,
    *,
    phase: str = "step",
    doing: str = "",
    quiet: float = 60.0,
    state: str = "",
) -> RankState:
    found = Activity(state) if state else None
    return RankState(rank, Beat(9, phase, doing, step, waits=bool(doing)), quiet, found)


REDUCES = "all-reduce"
CASES: dict[str, tuple[list[RankState], int | None]] = {
    "one is stopped": ([sight(0), sight(1, state="S"), sight(2, state="T")], 2),
    "one is in a debugger": ([sight(0, doing=REDUCES), sight(1, state="t")], 1),
    "one waits in the kernel": ([sight(0, state="D"), sight(1, state="S")], 0),
    "one is a step behind": ([sight(0), sight(1, 810), sight(2)], 1),
    "all but one wait": ([sight(0, doing=REDUCES), sight(1), sight(2, doing=REDUCES)], 1),
    "two do not wait": ([sight(0, doing=REDUCES), sight(1), sight(2)], None),
    "all wait": ([sight(0, doing=REDUCES), sight(1, doing=REDUCES)], None),
    "one that loads has no step yet": ([sight(0, 0, phase="loading"), sight(1, 40)], None),
    "all is well": ([sight(0, quiet=0.1), sight(1, 810, quiet=0.1)], None),
    "the only rank": ([sight(0)], 0),
    "there is no rank": ([], None),
    "all are complete": (
        [sight(0, phase="complete"), sight(1, 810, phase="complete", quiet=3.0)],
        1,
    ),
    "all are stopped": ([sight(0, state="T"), sight(1, state="T")], None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_the_others_wait_for_is_found(case: str) -> None:
    sights, expected = CASES[case]
    found = straggler_of(sights)
    assert (None if found is None else found.rank) == expected


def test_ranks_that_hang_in_their_first_collectives_are_told_together() -> None:
    first, second = sight(0, 0, phase="first step"), sight(1, 0, phase="evaluating")
    assert hangs_together([first, second])
    connecting = [sight(rank, 0, phase="connecting", quiet=601.0) for rank in (0, 1)]
    assert hangs_together(connecting)
    assert (
        stall_sentence(connecting, None)
        == "all 2 ranks have been in the first collective for 10 min"
    )
    assert not hangs_together([first])
    assert not hangs_together([first, sight(1, 0, phase="loading")])
    assert "NCCL_P2P_DISABLE" in NCCL_ADVICE


def test_the_sentence_names_the_rank_and_its_place() -> None:
    both = [sight(0, doing=REDUCES), sight(2, 811, doing=REDUCES, quiet=1890.0)]
    waits = "rank 2 has been in the all-reduce of step 812 for 31 min; the others wait for it"
    assert stall_sentence(both, 2) == waits
    stopped = [sight(0), sight(1, phase="saving", state="T")]
    assert stall_sentence(stopped, 1) == (
        "rank 1 has been in the save of step 811 for 60 s: it is stopped by a signal (state T); "
        "the others wait for it"
    )
    assert stall_sentence([sight(0, phase="loading", quiet=7300.0)], 0) == (
        "it has been in loading for 2 h 01 min"
    )
    assert stall_sentence([sight(0, phase="complete", quiet=102.0)], 0) == (
        "it reported that it is complete, and has not ended for 102 s"
    )


def test_where_nobody_is_behind_all_are_told() -> None:
    alike = [sight(rank, doing=REDUCES, quiet=60.0 + rank) for rank in range(3)]
    assert (
        stall_sentence(alike, None)
        == "all 3 ranks have been in the all-reduce of step 812 for 60 s"
    )
    stopped = [sight(0, state="T"), sight(1, state="T")]
    assert stall_sentence(stopped, None).endswith("for 60 s: each is stopped by a signal (state T)")
    unlike = [sight(0), sight(1), sight(2, doing=REDUCES)]
    assert stall_sentence(unlike, None) == (
        "no rank has got any further for 60 s: rank 0 is in step 812, rank 1 is in step 812, "
        "rank 2 is in the all-reduce of step 812"
    )


def test_durations_are_short() -> None:
    assert [format_duration(s) for s in (0.4, 119, 120, 7199, 7500)] == [
        "0 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h 05 min",
    ]


def test_an_evaluation_of_no_training_has_no_step() -> None:
    said = stall_sentence([sight(0, 0, phase="evaluating")], 0)
    assert said.startswith("it has been in the evaluation for 60 s")
    assert "evaluation after step 40" in stall_sentence([sight(0, 40, phase="evaluating")], 0)
