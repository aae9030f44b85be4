"""Seconds between steps, and until the last."""

from __future__ import annotations

import pytest

from zerotools.core.step_timer import WINDOW, StepTimer


def test_the_first_step_tells_nothing() -> None:
    timer = StepTimer()
    assert timer.seconds_left(10) is None
    assert timer.step_done(1, 100.0) is None
    assert timer.seconds_left(10) is None


def test_what_lies_between_steps_counts_and_steps_may_be_left_out() -> None:
    timer = StepTimer()
    timer.step_done(1, 0.0)
    assert timer.step_done(2, 1.0) == 1.0
    assert timer.step_done(4, 7.0) == 3.0
    assert timer.seconds_left(10) == pytest.approx(6 * 2.0)
    assert timer.seconds_left(3) == 0


def test_a_run_that_slows_down_is_believed() -> None:
    timer = StepTimer()
    now = 0.0
    for step in range(1, 1000):
        now += 1.0 if step < 500 else 4.0
        timer.step_done(step, now)
    assert timer.seconds_left(1000) == pytest.approx(4.0, rel=0.01)
    assert WINDOW < 100


def test_a_step_that_comes_again_is_no_step() -> None:
    timer = StepTimer()
    timer.step_done(5, 0.0)
    assert timer.step_done(5, 9.0) is None
    assert timer.seconds_left(6) is None
