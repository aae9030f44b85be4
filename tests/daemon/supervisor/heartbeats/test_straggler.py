"""Whom the others wait for: the rules, and the sentence."""

from __future__ import annotations

import pytest

from zerotoolsd.supervisor.heartbeats.rank_activity import Activity
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat
from zerotoolsd.supervisor.heartbeats.straggler import (
    NCCL_ADVICE,
    Sight,
    awaited,
    duration,
    hangs_together,
    sentence,
)


def sight(
    rank: int,
    step: int = 811,
    *,
    phase: str = "step",
    doing: str = "",
    quiet: float = 60.0,
    state: str = "",
) -> Sight:
    found = Activity(state) if state else None
    return Sight(rank, Beat(9, phase, doing, step, waits=bool(doing)), quiet, found)


REDUCES = "all-reduce"
CASES: dict[str, tuple[list[Sight], int | None]] = {
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
    found = awaited(sights)
    assert (None if found is None else found.rank) == expected


def test_ranks_that_hang_in_their_first_collectives_are_told_together() -> None:
    first, second = sight(0, 0, phase="first step"), sight(1, 0, phase="evaluating")
    assert hangs_together([first, second])
    connecting = [sight(rank, 0, phase="connecting", quiet=601.0) for rank in (0, 1)]
    assert hangs_together(connecting)
    assert sentence(connecting, None) == "all 2 ranks have been in the first collective for 10 min"
    assert not hangs_together([first])
    assert not hangs_together([first, sight(1, 0, phase="loading")])
    assert "NCCL_P2P_DISABLE" in NCCL_ADVICE


def test_the_sentence_names_the_rank_and_its_place() -> None:
    both = [sight(0, doing=REDUCES), sight(2, 811, doing=REDUCES, quiet=1890.0)]
    waits = "rank 2 has been in the all-reduce of step 812 for 31 min; the others wait for it"
    assert sentence(both, 2) == waits
    stopped = [sight(0), sight(1, phase="saving", state="T")]
    assert sentence(stopped, 1) == (
        "rank 1 has been in the save of step 811 for 60 s: it is stopped by a signal (state T); "
        "the others wait for it"
    )
    assert sentence([sight(0, phase="loading", quiet=7300.0)], 0) == (
        "it has been in loading for 2 h 01 min"
    )
    assert sentence([sight(0, phase="complete", quiet=102.0)], 0) == (
        "it reported that it is complete, and has not ended for 102 s"
    )


def test_where_nobody_is_behind_all_are_told() -> None:
    alike = [sight(rank, doing=REDUCES, quiet=60.0 + rank) for rank in range(3)]
    assert sentence(alike, None) == "all 3 ranks have been in the all-reduce of step 812 for 60 s"
    stopped = [sight(0, state="T"), sight(1, state="T")]
    assert sentence(stopped, None).endswith("for 60 s: each is stopped by a signal (state T)")
    unlike = [sight(0), sight(1), sight(2, doing=REDUCES)]
    assert sentence(unlike, None) == (
        "no rank has got any further for 60 s: rank 0 is in step 812, rank 1 is in step 812, "
        "rank 2 is in the all-reduce of step 812"
    )


def test_durations_are_short() -> None:
    assert [duration(s) for s in (0.4, 119, 120, 7199, 7500)] == [
        "0 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h 05 min",
    ]


def test_an_evaluation_of_no_training_has_no_step() -> None:
    said = sentence([sight(0, 0, phase="evaluating")], 0)
    assert said.startswith("it has been in the evaluation for 60 s")
    assert "evaluation after step 40" in sentence([sight(0, 40, phase="evaluating")], 0)
