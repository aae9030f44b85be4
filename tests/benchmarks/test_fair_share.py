"""Two users' GPU-hours over simulated time, by the daemon's own scheduler."""

from __future__ import annotations

import pytest

from benchmarks.fair_share import GPUS, HOUR, Case, Simulation, trace

DAYS = 2


def parts(case: Case, *, fair: bool = True) -> tuple[float, float]:
    """The first user's part of all GPU-hours, and the part of the GPUs that was used."""
    until = DAYS * 86400.0
    weights = dict(enumerate(case.weights, 1))
    simulation = Simulation(weights.__getitem__, 7 * 86400.0, fair)
    simulation.run(trace(case, 1, until), until)
    whole = sum(simulation.used.values())
    return simulation.used[1] / whole, whole / (GPUS * until)


def test_each_gets_their_share_whatever_they_ask_for() -> None:
    part, used = parts(Case("thrice", (1.0, 1.0), (0.8, 2.4)))
    assert part == pytest.approx(0.5, abs=0.025)
    assert 0.8 < used <= 1
    part, _ = parts(Case("weights", (2.0, 1.0), (1.2, 1.2)))
    assert part == pytest.approx(2 / 3, abs=0.033)
    by_age, _ = parts(Case("thrice", (1.0, 1.0), (0.8, 2.4)), fair=False)
    assert by_age < 0.4


def test_what_one_does_not_ask_for_goes_to_the_other() -> None:
    part, used = parts(Case("little", (1.0, 1.0), (0.1, 2.4)))
    assert part < 0.2
    assert used > 0.8


def test_a_trace_is_that_of_its_seed() -> None:
    case = Case("any", (1.0, 1.0), (0.5, 0.5))
    assert trace(case, 1, HOUR) == trace(case, 1, HOUR) != trace(case, 2, HOUR)
