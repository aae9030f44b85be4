"""A calendar that somebody sets ends no wait, and ages nothing."""

from __future__ import annotations

import pytest

from zerotoolsd.queue.clocks import Moment, RetryWaits, SteadyCalendar

DAY = 86400.0


class Clocks:
    """A calendar and a clock of the test."""

    def __init__(self) -> None:
        self.calendar, self.clock = 1e9, 500.0

    def now(self) -> Moment:
        return Moment(self.calendar, self.clock, "boot")

    def passes(self, seconds: float) -> None:
        self.calendar += seconds
        self.clock += seconds


@pytest.mark.parametrize("set_by", [0.0, DAY, -DAY, 40 * DAY, -100.0])
def test_a_wait_lasts_as_long_as_it_should(set_by: float) -> None:
    clocks = Clocks()
    waits, until = RetryWaits(300.0, clocks.now), clocks.calendar + 200
    assert waits.seconds_left(7, until) == 200
    clocks.passes(50)
    clocks.calendar += set_by
    assert waits.seconds_left(7, until) == 150
    clocks.passes(150)
    assert waits.seconds_left(7, until) == 0
    waits.forget(7)
    assert waits.seconds_left(7, None) == 0


def test_a_new_wait_of_the_same_job_is_another_one() -> None:
    clocks = Clocks()
    waits = RetryWaits(300.0, clocks.now)
    assert waits.seconds_left(7, clocks.calendar + 10) == 10
    assert waits.seconds_left(7, clocks.calendar + 40) == 40


def test_a_calendar_that_was_set_back_while_no_daemon_ran_holds_nobody_up() -> None:
    clocks = Clocks()
    assert RetryWaits(300.0, clocks.now).seconds_left(7, clocks.calendar + DAY) == 0
    assert RetryWaits(300.0, clocks.now).seconds_left(7, clocks.calendar - DAY) < 0


@pytest.mark.parametrize("synchronised", [True, False, None])
def test_what_is_old_is_told_by_a_calendar_that_nobody_set_forward(
    synchronised: bool | None,
) -> None:
    clocks = Clocks()
    calendar = SteadyCalendar(lambda: synchronised, lambda: clocks.calendar, lambda: clocks.clock)
    clocks.passes(40 * DAY)
    assert calendar.now() == clocks.calendar
    before = clocks.calendar
    clocks.calendar += 365 * DAY
    assert calendar.now() == (clocks.calendar if synchronised else before)
    clocks.calendar = before - DAY
    assert calendar.now() == clocks.calendar  # nothing is older by that
