from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.dispatch.memory_guard.host_forecast import MemorySample, seconds_left

GIB = 2**30
TOTAL = 64 * GIB


def curve(
    available: Callable[[float], float], until: float, each: float = 0.5, coming: int = 0
) -> list[MemorySample]:
    """Samples of GiB that are available at each time."""
    count = int(until / each) + 1
    times = [n * each for n in range(count)]
    return [MemorySample(t, TOTAL, int(available(t) * GIB), coming) for t in times]


def test_a_ramp_ends_when_it_ends() -> None:
    assert seconds_left(curve(lambda t: 40 - 2 * t, 5), 0) == pytest.approx(15)
    assert seconds_left(curve(lambda t: 40 - 2 * t, 5), 10 * GIB) == pytest.approx(10)


def test_a_leak_over_minutes_shows() -> None:
    leak = curve(lambda t: 12 - 0.1 * t, 100)
    assert seconds_left(leak, 0) == pytest.approx(20, rel=0.01)


def test_one_that_began_just_now_is_soon_a_ramp() -> None:
    assert seconds_left(curve(lambda t: 40 - 3 * max(0, t - 60), 61), 0) == math.inf
    late = seconds_left(curve(lambda t: 40 - 3 * max(0, t - 60), 62.5), 0)
    assert late == pytest.approx(32.5 / 3, rel=0.01)


@pytest.mark.parametrize(
    "available",
    [
        lambda t: 40.0,
        lambda t: 40 - 20 * (t >= 3),  # at once
        lambda t: 20 + t,
        lambda t: 40 - 6 * min(t, 1.5),  # a short ramp that has ended
        lambda t: 40 + math.sin(7 * t) / 1e4,
    ],
)
def test_what_does_not_shrink_steadily_lasts(available: Callable[[float], float]) -> None:
    assert seconds_left(curve(available, 6), 0) == math.inf


def test_a_long_ramp_that_has_ended_is_none_any_more() -> None:
    assert seconds_left(curve(lambda t: 40 - 0.5 * min(t, 50), 62), 0) == math.inf


def test_what_was_expected_and_fits_is_no_leak() -> None:
    ramp = curve(lambda t: 40 - 4 * t, 5, coming=10 * GIB)
    assert seconds_left(ramp, GIB) == math.inf
    assert seconds_left(curve(lambda t: 40 - 4 * t, 5, coming=19 * GIB), GIB) < 6  # does not fit


def test_the_slope_of_loading_says_nothing_of_the_time_after() -> None:
    ramp = [replace(each, loading=True) for each in curve(lambda t: 40 - 4 * t, 5)]
    assert seconds_left(ramp, 0) == pytest.approx(5)
    still = [MemorySample(5 + n / 2, TOTAL, 20 * GIB) for n in range(1, 20)]
    assert seconds_left([*ramp, *still[:1]], 0) == math.inf
    goes_on = [MemorySample(5 + n / 2, TOTAL, (20 - n) * GIB) for n in range(1, 8)]
    assert seconds_left([*ramp, *goes_on], 0) == pytest.approx(6.5)


def test_of_few_samples_nothing_is_known() -> None:
    assert seconds_left([], 0) == math.inf
    assert seconds_left(curve(lambda t: 40 - 10 * t, 1), 0) == math.inf
    still = [MemorySample(1.0, TOTAL, GIB * (9 - n)) for n in range(9)]
    assert seconds_left(still, 0) == math.inf  # a clock that stands


@given(st.lists(st.integers(0, TOTAL), min_size=1, max_size=60), st.integers(0, GIB))
def test_it_is_never_less_than_nothing(levels: list[int], reserve: int) -> None:
    samples = [MemorySample(n / 2, TOTAL, level) for n, level in enumerate(levels)]
    assert seconds_left(samples, reserve) >= 0
