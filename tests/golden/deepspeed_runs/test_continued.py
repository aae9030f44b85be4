"""How loss curves are compared, without running any."""

from __future__ import annotations

import pytest

from .continued import drift_of


def curve(*steps: tuple[float, int]) -> list[dict[str, float]]:
    return [{"loss": loss, "skipped": skipped} for loss, skipped in steps]


def test_the_drift_is_the_greatest_relative_difference() -> None:
    drift, compared = drift_of(curve((4.0, 0), (2.0, 0)), curve((4.0, 0), (2.5, 0)))
    assert (drift, compared) == (0.25, 2)


def test_a_skip_that_one_run_alone_makes_ends_the_comparison_after_its_step() -> None:
    expected = curve((4.0, 1), (2.0, 2), (1.0, 2))
    assert drift_of(expected, curve((4.0, 1), (3.0, 1), (9.0, 1))) == (0.5, 2)
    assert drift_of(expected, curve((4.0, 1), (2.0, 2), (2.0, 2))) == (1.0, 3)


def test_curves_of_different_lengths_are_no_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        drift_of(curve((4.0, 0), (2.0, 0)), curve((4.0, 0)))


def test_a_loss_that_is_no_number_is_no_match() -> None:
    assert not drift_of(curve((4.0, 0)), curve((float("nan"), 0)))[0] <= 1
