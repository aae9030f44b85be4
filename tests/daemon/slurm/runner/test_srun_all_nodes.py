from __future__ import annotations

from typing import Any

import pytest

from zerotoolsd.slurm.runner.srun_all_nodes import combined_record

NAMES = ("node 0 (n1)", "node 1 (n2)")


def record(outcome: str, **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "cause": outcome.upper(), **more}


@pytest.mark.parametrize(
    ("outcomes", "wanted", "cause"),
    [
        (("finished", "finished"), "finished", "FINISHED"),
        (("stopped", "stopped"), "stopped", "STOPPED"),
        (("not_ready", "crashed"), "crashed", "node 1 (n2): CRASHED"),
        (("crashed", "bad_job"), "bad_job", "node 1 (n2): BAD_JOB"),
        (("lost", "stopped"), "lost", "node 0 (n1): LOST"),
        (("finished", "stopped"), "stopped", "STOPPED"),
    ],
)
def test_what_was_wrong_by_itself_counts(
    outcomes: tuple[str, str], wanted: str, cause: str
) -> None:
    found = combined_record([record(each) for each in outcomes], NAMES)
    assert (found["outcome"], found["cause"]) == (wanted, cause)


def test_of_two_that_failed_the_first_did_it() -> None:
    found = combined_record([record("crashed", ended=20.0), record("crashed", ended=10.0)], NAMES)
    assert found["cause"] == "node 1 (n2): CRASHED"


def test_steps_are_told_by_node_0_and_peaks_are_the_largest() -> None:
    first = record("stopped", steps_done=7, checkpoint={"step": 6}, peak_host_bytes=5)
    first |= {"evaluation": {"step": 4}}
    second = record(
        "crashed", steps_done=3, evaluation={"step": 2}, peak_host_bytes=9, unkillable=[{"pid": 1}]
    )
    found = combined_record([first, second], NAMES)
    assert (found["steps_done"], found["checkpoint"]) == (7, {"step": 6})
    assert found["evaluation"] == {"step": 4}
    assert (found["peak_host_bytes"], found["unkillable"]) == (9, [])
