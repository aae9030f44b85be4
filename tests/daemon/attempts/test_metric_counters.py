"""What is counted of attempts, by the records that they left."""

from __future__ import annotations

from typing import Any

import pytest

from zerotoolsd.attempts.metric_counters import Histogram, MetricCounters


def test_effective_time_is_that_of_steps_that_were_saved() -> None:
    tally = MetricCounters()
    progress = {"step_seconds": 2.0}
    crashed = {"ran_seconds": 100.0, "progress": progress, "checkpoint": {"step": 30}}
    tally.attempt_ended("crashed", "hang", crashed, best_step=0)
    finished = {"ran_seconds": 50.0, "progress": progress, "steps_done": 50}
    tally.attempt_ended("finished", None, finished, best_step=30)
    assert (tally.attempt_seconds, tally.training_seconds) == (150.0, 60.0 + 40.0)
    assert tally.attempts == {("crashed", "hang"): 1, ("finished", "none"): 1}


def test_the_last_checkpoint_and_when_one_was_verified() -> None:
    tally = MetricCounters()
    saved = {"step": 1, "seconds": 3.0, "bytes": 10, "time": 5.0, "verified": "at_save"}
    tally.attempt_ended("finished", None, {"ran_seconds": 1.0, "checkpoint": saved}, 0)
    assert (tally.checkpoint_seconds, tally.checkpoint_bytes, tally.verified_at) == (3.0, 10, 5.0)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"ran_seconds": "x"},
        {"ran_seconds": float("nan"), "checkpoint": 3},
        {"ran_seconds": 1.0, "checkpoint": [], "progress": "x", "steps_done": 10**400},
        {"ran_seconds": 1.0, "progress": {"step_seconds": -1}, "checkpoint": {"step": None}},
    ],
)
def test_what_ranks_write_into_a_record_breaks_nothing(record: dict[str, Any]) -> None:
    tally = MetricCounters()
    tally.attempt_ended("finished", None, record, 0)
    assert tally.training_seconds == 0


def test_a_histogram_is_cumulative() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 5.0, 100.0):
        histogram.observe(value)
    samples = [(each.suffix, each.labels.get("le"), each.value) for each in histogram.samples()]
    assert samples == [
        ("_bucket", "1.0", 2),
        ("_bucket", "10.0", 3),
        ("_bucket", "+Inf", 4),
        ("_sum", None, 106.5),
        ("_count", None, 4),
    ]


def test_the_lag_is_the_longest_since_it_was_asked() -> None:
    tally = MetricCounters()
    tally.record_lag(0.5)
    tally.record_lag(0.1)
    assert (tally.pop_lag(), tally.pop_lag()) == (0.5, 0.0)
