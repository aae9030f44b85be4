from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.dispatch.memory_guard.test_host_forecast import GIB
from zerotoolsd.dispatch.memory_guard.gpu_forecast import GpuCurve, GpuSample, rate_of

TOTAL = 80 * GIB
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
        TOTAL,
        TOTAL - int(used * GIB),
        {job: int(size * GIB) for job, size in held.items()} if known else {},
        {job: int(size * GIB) for job, size in promised.items()} if known else {},
        known,
    )


def curve(
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
    loads = curve(lambda t: min(30.0, 4 * t), 9)
    look = loads.outlook(0)
    assert (look.gone, look.scarce, look.spare) == (math.inf, math.inf, 30 * GIB)
    assert loads.grows(1)
    assert not loads.grows(2)


def test_what_it_takes_beyond_that_is_one_and_ends_when_it_ends() -> None:
    look = curve(lambda t: 30.0 + 2 * t, 10).outlook(5 * GIB)
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
    assert curve(held, 11).outlook(0).gone == math.inf


def test_a_long_ramp_that_has_ended_is_none_any_more() -> None:
    assert curve(lambda t: 30.0 + 0.2 * min(t, 50), 62).outlook(0).gone == math.inf


def test_a_slow_leak_is_a_stair_that_gaps_of_a_minute_see() -> None:
    def stair(t: float) -> float:
        return 30.0 + 20 * MIB / GIB * (t // 70)  # 1 GiB in an hour

    assert curve(stair, 60).outlook(0).gone == math.inf
    look = curve(stair, 1200).outlook(0)
    rate = 20 * MIB / 70
    assert look.gone == pytest.approx(look.spare / rate, rel=0.2)


def test_one_large_step_in_ten_minutes_is_none_and_two_are_a_stair() -> None:
    one = curve(lambda t: 30.0 + (t >= 300), 600)
    assert one.outlook(0).gone == math.inf
    two = curve(lambda t: 30.0 + (t >= 300) + (t >= 590), 600)
    assert two.outlook(0).gone == pytest.approx(two.outlook(0).spare / (GIB / 600))
    long_ago = curve(lambda t: 30.0 + (t >= 100) + (t >= 250), 600)
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
    loads = curve(lambda t: 20.0, 40, strangers=lambda t: min(8.0, max(0.0, t - 30)))
    assert loads.outlook(0).gone < math.inf
    assert loads.outlook(0).by_others == math.inf
    leak = curve(lambda t: 20.0, 60, strangers=lambda t: 0.2 * t)
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
    found = curve(lambda t: 30.0, 1500)
    assert len(found._samples) == len(found._taken) == 602


@given(st.lists(st.integers(0, TOTAL), min_size=1, max_size=80), st.integers(0, GIB))
def test_it_is_never_less_than_nothing(used: list[int], reserve: int) -> None:
    found = GpuCurve()
    for n, size in enumerate(used):
        found.add(GpuSample(float(n), TOTAL, TOTAL - size, {1: size}, {1: 20 * GIB}))
    look = found.outlook(reserve)
    assert min(look.scarce, look.gone, look.by_others) >= 0
    assert look.scarce <= look.gone or look.gone == math.inf
