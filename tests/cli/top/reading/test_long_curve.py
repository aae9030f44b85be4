from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zerotools.cli.top.reading.long_curve import CurveSeen, LongCurve


def curve_of(values: list[float], most: int = 100) -> LongCurve:
    curve = LongCurve(most)
    for step, value in enumerate(values):
        curve.put(step, value)
    return curve


def test_a_short_curve_is_all_there() -> None:
    seen = curve_of([3.0, 1.0, 2.0]).seen()
    assert seen.shape.points == {0: 3.0, 1: 1.0, 2: 2.0}
    assert seen.shape.means == (3.0, 1.0, 2.0)
    assert (seen.first, seen.last, seen.last_step) == (3.0, 2.0, 2)
    assert (seen.least, seen.least_step) == (1.0, 1)


def test_nothing_is_an_empty_curve() -> None:
    assert LongCurve().seen() == CurveSeen()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(2, 40))
def test_a_long_curve_keeps_its_ends_and_its_extremes(values: list[float], most: int) -> None:
    curve = curve_of(values, most)
    seen = curve.seen()
    points = list(seen.shape.points.values())
    assert len(seen.shape.means) <= most
    assert len(points) <= 4 * most
    assert (seen.first, seen.last, seen.least) == (values[0], values[-1], min(values))
    assert (points[0], points[-1]) == (values[0], values[-1])
    assert min(points) == min(values)


def test_steps_that_are_far_apart_become_few_parts_too() -> None:
    curve = LongCurve(10)
    for step in range(0, 100_000, 1000):
        curve.put(step, float(step))
    assert len(curve.seen().shape.means) <= 10
    assert curve.seen().last == 99_000.0


def test_a_step_is_not_taken_twice_but_after_a_cut() -> None:
    curve = curve_of([3.0, 2.0, 1.0])
    curve.put(1, 9.0)
    assert curve.seen().shape.points == {0: 3.0, 1: 2.0, 2: 1.0}
    curve.cut(1)
    curve.put(1, 9.0)
    assert curve.seen().shape.points == {0: 3.0, 1: 9.0}


def test_what_is_drawn_stays_the_same_object_until_the_curve_has_grown() -> None:
    curve = curve_of([1.0] * 3000)
    shape = curve.seen().shape
    curve.put(3000, 5.0)
    assert curve.seen().shape is shape
    assert curve.seen().last == 5.0
    for step in range(3001, 3100):
        curve.put(step, 5.0)
    assert curve.seen().shape is not shape
