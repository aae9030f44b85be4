"""What of the work counts."""

from __future__ import annotations

from zerotools.jobs.drill.tally import Tally

TWICE = [
    *("began 1 from 0", "step 1", "step 2", "saved 2", "step 3"),
    *("began 2 from 2", "step 3", "step 4", "saved 4", "done"),
]


def test_a_step_that_is_run_again_counts_once() -> None:
    tally = Tally()
    assert (tally.kept, tally.effective) == (1.0, 1.0)
    tally.add(TWICE, 0.5)
    tally.seconds += 4.0
    assert (tally.steps_run, tally.steps_kept, tally.attempts) == (5, 4, 2)
    assert (tally.kept, tally.effective) == (0.8, 0.5)


def test_what_was_not_saved_is_not_kept() -> None:
    tally = Tally()
    tally.add(["began 1 from 0", "step 1", "not saved 1: No space left on device"], 1.0)
    assert (tally.steps_run, tally.steps_kept) == (1, 0)
