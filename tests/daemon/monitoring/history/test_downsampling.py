from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.monitoring.history.downsampling import (
    DAY,
    HOUR,
    TIERS,
    Bucket,
    MeanAndMost,
    bucket_of,
    combined,
    rolled_up,
    step_for,
    tier_for,
)

numbers = st.floats(-1e12, 1e12)


def test_what_is_no_number_is_left_out() -> None:
    bucket = bucket_of(12.9, {"a": 1.0, "b": math.nan, "c": math.inf})
    assert bucket == Bucket(12, {"a": MeanAndMost(1.0, 1.0)})


def test_a_series_that_some_lack_is_of_the_others() -> None:
    first = Bucket(20, {"a": MeanAndMost(1, 9), "b": MeanAndMost(5, 5)})
    second = Bucket(21, {"a": MeanAndMost(3, 4)})
    assert combined(20, [first, second]).series == {"a": MeanAndMost(2, 9), "b": MeanAndMost(5, 5)}


@given(st.lists(st.tuples(st.integers(0, 500), numbers), max_size=60), st.sampled_from([10, 60]))
def test_each_bucket_has_the_most_of_its_seconds_and_none_is_in_two(
    samples: list[tuple[int, float]], step: int
) -> None:
    seconds = [bucket_of(time, {"x": value}) for time, value in sorted(samples)]
    found = rolled_up(seconds, step)
    starts = [bucket.start for bucket in found]
    assert starts == sorted({time // step * step for time, _ in samples})
    for bucket in found:
        values = [v for time, v in samples if bucket.start <= time < bucket.start + step]
        x = bucket.series["x"]
        assert x.most == max(values)
        assert x.mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-3)


@given(st.integers(1, 400 * DAY), st.integers(1, 1000))
def test_an_answer_has_at_most_its_points_and_is_made_of_few_buckets(
    seconds: int, points: int
) -> None:
    tier = TIERS[tier_for(seconds, points)]
    step = step_for(tier, seconds, points)
    assert step % tier.step_seconds == 0
    assert seconds / step <= points
    if seconds <= TIERS[-1].span_seconds:
        assert tier.span_seconds >= seconds
    if HOUR < seconds <= DAY:
        assert tier.step_seconds in (10, 60, 600)


def test_a_short_time_is_told_by_seconds_and_a_long_one_by_minutes() -> None:
    assert [TIERS[tier_for(s, 240)].step_seconds for s in (60, HOUR, 6 * HOUR, DAY, 30 * DAY)] == [
        *(1, 10, 60, 60, 600)
    ]
