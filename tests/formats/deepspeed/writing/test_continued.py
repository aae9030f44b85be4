"""Training goes on after a reshard as if nothing had happened: real DeepSpeed, real losses."""

from __future__ import annotations

import pytest

from tests.golden.deepspeed_runs.continued import RESET, Course, Verdict, continue_all
from tests.matrices import FULL

# The first launch ever compiles DeepSpeed's communication for CPUs, and its Adam.
pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.timeout(900),
    pytest.mark.dear(40, "three courses, each against its own"),
]

# A course of stage 3 with a loss scale and groups, one of another optimizer, and one at another
# stage than the one that was saved. In the full matrix each value and each risky pair once: stages,
# precisions, one and three groups, orders, padding, sub-groups, a schedule, clipping, accumulation,
# skips, growing and shrinking, DeepSpeed's own Adam on the CPU; other stages and sub-groups.
# `test_judge` has these of states that DeepSpeed loads and compares, element by element.
# scripts/judge has more courses, other pairs of one to four ranks, those of RESET with the settings
# that they saved with, and asks DeepSpeed of every course what its own save gives.
COURSES = (Course("z3-fp16-zoo", 2, 3), Course("z2-fp32-momentum", 2, 3), RESET[3])
ASKED = COURSES[:1]
if FULL:
    COURSES += (
        Course("z1-fp32-round-robin", 2, 3),
        Course("z2-bf16-cpu-adam", 2, 3),
        Course("z2-fp16-learner", 3, 2),
        Course("z3-bf16-lion", 3, 2),
        *RESET[:3],
        RESET[4],
    )
    ASKED = (*COURSES[:2], COURSES[4])
"""One of each precision in the full matrix."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[Course, Verdict]:
    return continue_all(COURSES, tmp_path_factory.mktemp("continued"), ASKED)


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_training_goes_on(course: Course, verdicts: dict[Course, Verdict]) -> None:
    assert verdicts[course].differences == []


def test_the_tolerance_tells_a_run_that_lost_its_moments(
    verdicts: dict[Course, Verdict],
) -> None:
    """Without the optimizer's state every curve is far outside; DeepSpeed's own save never is."""
    for course in ASKED:
        verdict = verdicts[course]
        assert verdict.weights_only is not None
        assert verdict.weights_only > 20 * verdict.drift, course
        assert verdict.weights_only > verdict.tolerance, course
        assert verdict.own_drift == 0, course
    assert min(verdict.compared for verdict in verdicts.values()) >= 3
