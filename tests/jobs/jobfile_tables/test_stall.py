"""What `[stall]` takes, and what it comes to."""

from __future__ import annotations

import pytest

from zerotools.jobs.jobfile_tables.stall import DEADLINES, StallSpec, check_stall, limits_of


def test_limits_are_those_of_the_engine_unless_the_job_states_them() -> None:
    ours = limits_of(StallSpec(), own_program=False)
    assert ours == {"action": "end", "factor": 120.0, **DEADLINES, "silence": None}
    stated = StallSpec(step_limit="1h30m", save_limit="never", silence_limit=60, action="report")
    found = limits_of(stated, own_program=False)
    assert (found["step"], found["save"], found["silence"]) == (5400, None, 60)
    assert (found["start"], found["action"]) == (7200, "report")


def test_a_script_has_no_limits_but_its_own() -> None:
    found = limits_of(StallSpec(silence_limit="2h"), own_program=True)
    assert {name: value for name, value in found.items() if value is not None} == {
        "action": "end",
        "factor": 120.0,
        "silence": 7200,
    }


@pytest.mark.parametrize("value", [0, -5, "soon", "", "5 years", 10**12])
def test_what_is_no_time_is_refused_by_name(value: int | str) -> None:
    (problem,) = check_stall(StallSpec(step_limit=value))
    assert problem.startswith("stall.step_limit = ")
    assert problem.endswith('or "never"')
    assert list(check_stall(StallSpec(step_limit="never", start_limit=5, data_limit="5d"))) == []
