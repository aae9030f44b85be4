from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.dispatch.forecast_memory_exhaustion import (
    GpuCurve,
    GpuSample,
    MemorySample,
    rate_of,
    seconds_left,
)

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


GPU_TOTAL = 80 * GIB
MIB = 2**20


def sample(
    clock: float,
    held: dict[int, float],
    promised: dict[int, float],
    strangers: float = 0.0,
    known: bool = True,
) -> GpuSample:
    """GiB by job."""
    used = sum(held.values()) + strangers
    return GpuSample(
        clock,
        GPU_TOTAL,
        GPU_TOTAL - int(used * GIB),
        {job: int(size * GIB) for job, size in held.items()} if known else {},
        {job: int(size * GIB) for job, size in promised.items()} if known else {},
        known,
    )


def gpu_curve(
    held: Callable[[float], float],
    seconds: int,
    promised: float = 30.0,
    strangers: Callable[[float], float] = lambda t: 0.0,
    beside: float = 20.0,
) -> GpuCurve:
    """Job 1 holds so many GiB at each second, beside job 2, which has all that it was promised."""
    found = GpuCurve()
    for t in range(seconds + 1):
        both = {1: held(t), 2: beside}
        found.add(sample(t, both, {1: promised, 2: beside}, strangers(t)))
    return found


def test_what_a_job_takes_of_what_it_declared_is_no_leak() -> None:
    loads = gpu_curve(lambda t: min(30.0, 4 * t), 9)
    look = loads.outlook(0)
    assert (look.gone, look.scarce, look.spare) == (math.inf, math.inf, 30 * GIB)
    assert loads.grows(1)
    assert not loads.grows(2)


def test_what_it_takes_beyond_that_is_one_and_ends_when_it_ends() -> None:
    look = gpu_curve(lambda t: 30.0 + 2 * t, 10).outlook(5 * GIB)
    assert look.spare == 10 * GIB
    assert look.gone == pytest.approx(5.0)
    assert look.scarce == pytest.approx(2.5)


@pytest.mark.parametrize(
    "held",
    [
        lambda t: 30.0 + 8 * (t >= 5),  # a step up to a plateau
        lambda t: 30.0 + 4 * (t >= 3) + 4 * (t >= 8),
        lambda t: 38.0 - (t % 2),
        lambda t: 30.0 + 2 * min(t, 2),  # a short ramp that has ended
        lambda t: 40.0 - t,
    ],
)
def test_an_allocator_that_takes_more_at_times_and_keeps_it_does_not_leak(
    held: Callable[[float], float],
) -> None:
    assert gpu_curve(held, 11).outlook(0).gone == math.inf


def test_a_long_ramp_on_a_gpu_that_has_ended_is_none_any_more() -> None:
    assert gpu_curve(lambda t: 30.0 + 0.2 * min(t, 50), 62).outlook(0).gone == math.inf


def test_a_slow_leak_is_a_stair_that_gaps_of_a_minute_see() -> None:
    def stair(t: float) -> float:
        return 30.0 + 20 * MIB / GIB * (t // 70)  # 1 GiB in an hour

    assert gpu_curve(stair, 60).outlook(0).gone == math.inf
    look = gpu_curve(stair, 1200).outlook(0)
    rate = 20 * MIB / 70
    assert look.gone == pytest.approx(look.spare / rate, rel=0.2)


def test_one_large_step_in_ten_minutes_is_none_and_two_are_a_stair() -> None:
    one = gpu_curve(lambda t: 30.0 + (t >= 300), 600)
    assert one.outlook(0).gone == math.inf
    two = gpu_curve(lambda t: 30.0 + (t >= 300) + (t >= 590), 600)
    assert two.outlook(0).gone == pytest.approx(two.outlook(0).spare / (GIB / 600))
    long_ago = gpu_curve(lambda t: 30.0 + (t >= 100) + (t >= 250), 600)
    assert long_ago.outlook(0).gone == math.inf


def test_jobs_that_start_and_end_are_no_leak() -> None:
    found = GpuCurve()
    for t in range(240):
        there = dict.fromkeys(range(1 + t // 30), 9.0)  # one more each half minute
        found.add(sample(t, there, dict.fromkeys(there, 9.0)))
        assert found.outlook(0).gone == math.inf


def test_a_leak_goes_on_when_another_job_starts() -> None:
    found = GpuCurve()
    for t in range(11):
        held = {1: 30.0 + t, **({2: 10.0} if t >= 8 else {})}
        found.add(sample(t, held, {1: 30.0, **({2: 10.0} if t >= 8 else {})}))
    assert found.outlook(0).gone == pytest.approx(found.newest.spare / GIB, rel=0.3)


def test_what_is_to_come_and_does_not_fit_is_gone_when_the_rest_is_taken() -> None:
    # Job 2 holds 25 more than it declared; job 1 takes 2 GiB/s of what it declared.
    found = GpuCurve()
    for t in range(9):
        found.add(sample(t, {1: 2.0 * t, 2: 45.0}, {1: 40.0, 2: 20.0}))
    look = found.outlook(GIB)
    assert look.spare == -5 * GIB
    assert look.gone == pytest.approx(look.free / (2 * GIB))


def test_programs_that_load_something_are_not_yet_a_leak_of_theirs() -> None:
    loads = gpu_curve(lambda t: 20.0, 40, strangers=lambda t: min(8.0, max(0.0, t - 30)))
    assert loads.outlook(0).gone < math.inf
    assert loads.outlook(0).by_others == math.inf
    leak = gpu_curve(lambda t: 20.0, 60, strangers=lambda t: 0.2 * t)
    assert leak.outlook(0).by_others == pytest.approx(leak.outlook(0).spare / (0.2 * GIB))


def test_where_nobody_knows_who_holds_what_free_memory_is_all_that_counts() -> None:
    found = GpuCurve()
    for t in range(9):
        found.add(sample(t, {1: 10.0 + t}, {1: 10.0}, known=False))
    look = found.outlook(0)
    assert (look.spare, look.to_come, look.gone) == (look.free, 0, math.inf)


def test_of_few_samples_and_of_a_clock_that_stands_nothing_is_known() -> None:
    assert rate_of([]) == 0.0
    assert rate_of([(1.0, 5), (2.0, 9 * GIB)]) == 0.0
    assert rate_of([(1.0, n * GIB) for n in range(20)]) == 0.0


def test_what_is_longer_ago_than_the_longest_window_is_forgotten() -> None:
    found = gpu_curve(lambda t: 30.0, 1500)
    assert len(found._samples) == len(found._unpromised) == 602


@given(st.lists(st.integers(0, GPU_TOTAL), min_size=1, max_size=80), st.integers(0, GIB))
def test_it_is_never_less_than_nothing_on_a_gpu(used: list[int], reserve: int) -> None:
    found = GpuCurve()
    for n, size in enumerate(used):
        found.add(GpuSample(float(n), GPU_TOTAL, GPU_TOTAL - size, {1: size}, {1: 20 * GIB}))
    look = found.outlook(reserve)
    assert min(look.scarce, look.gone, look.by_others) >= 0
    assert look.scarce <= look.gone or look.gone == math.inf
