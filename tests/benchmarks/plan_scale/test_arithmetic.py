from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plan_scale.arithmetic import (
    CASES,
    MODELS,
    best_interval,
    checkpoint_bytes,
    llama_3_node_days,
    lost,
    rows,
    simulated,
)

FAILURES = 200
PAGE = Path(__file__).parents[3] / "docs/explanation/scale.md"


def test_the_page_has_the_figures_that_are_computed() -> None:
    text = PAGE.read_text("utf-8")
    for row in rows():
        assert "| " + " | ".join(row) + " |" in text
    assert f"once in {llama_3_node_days():.0f} days for each node" in text


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_agrees_with_the_formula(name: str) -> None:
    cluster = CASES[name]
    cost = cluster.seconds_to_save(checkpoint_bytes(MODELS[name]))
    between = cluster.seconds_between_failures
    for times in (0.5, 1.0, 2.0):
        interval = times * best_interval(cost, between)
        days = FAILURES * between / 86400
        drawn = [
            simulated(interval, cost, between, cluster.restart, days=days, seed=seed)
            for seed in range(6)
        ]
        expected = lost(interval, cost, between, cluster.restart)
        # The formula is of the first order: 2,048 nodes lose a tenth of their time.
        assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("name", CASES)
def test_no_other_interval_loses_less(name: str) -> None:
    cluster = CASES[name]
    cost = cluster.seconds_to_save(checkpoint_bytes(MODELS[name]))
    between = cluster.seconds_between_failures
    best = best_interval(cost, between)
    least = lost(best, cost, between, cluster.restart)
    for times in (0.5, 0.9, 1.1, 2.0):
        assert lost(best * times, cost, between, cluster.restart) > least


def test_without_failures_saving_is_all_that_is_lost() -> None:
    assert simulated(90, 10, 1e15, 100, days=10, seed=1) == pytest.approx(0.1)
