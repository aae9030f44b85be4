from dataclasses import replace

import pytest

from zerotools.jobs.spec import TrainSpec
from zerotoolsd.trainer.schedule import learning_rate

COSINE = TrainSpec(steps=11, batch_size=1, learning_rate=1.0, min_learning_rate=0.1, warmup_steps=2)


def test_warm_up_is_linear_and_reaches_the_peak_when_it_ends() -> None:
    assert [learning_rate(COSINE, step) for step in range(3)] == [0.5, 1.0, 1.0]


def test_cosine_is_halfway_in_the_middle_and_lowest_at_the_last_step() -> None:
    assert learning_rate(COSINE, 6) == pytest.approx(0.55)
    assert learning_rate(COSINE, 10) == pytest.approx(0.1)


def test_the_rate_stays_at_the_lowest_beyond_the_last_step() -> None:
    assert learning_rate(COSINE, 50) == pytest.approx(0.1)


def test_constant_keeps_the_peak() -> None:
    constant = replace(COSINE, schedule="constant")
    assert {learning_rate(constant, step) for step in range(2, 11)} == {1.0}


def test_one_step_without_warm_up_has_the_peak() -> None:
    assert learning_rate(replace(COSINE, steps=1, warmup_steps=0), 0) == 1.0
