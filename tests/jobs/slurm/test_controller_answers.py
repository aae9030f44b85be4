from __future__ import annotations

import json

import pytest

from zerotools.jobs.slurm.controller_answers import (
    job_of_scontrol,
    jobs_of_json,
    jobs_of_sacct,
    jobs_of_text,
)

TEXT = (
    "12\tPENDING\tResources\tzerotools:abc\t2\t\tmy job\n13\tCOMPLETING\tNone\t(null)\t1\tn3\tx\n"
)
SCONTROL = (
    "JobId=12 JobName=a b UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "PreemptEligibleTime=2026-11-26T18:10:44 PreemptTime=2026-11-26T18:11:00 NodeList=n[1-2] "
    "NumNodes=2-2 Comment=zerotools:abc Power="
)


def test_lines_of_squeue() -> None:
    first, second = jobs_of_text(f"{TEXT}garbage\n")
    assert (first.number, first.state, first.reason, first.comment) == (
        "12",
        "PENDING",
        "Resources",
        "zerotools:abc",
    )
    assert first.waits
    assert not first.goes
    assert (second.comment, second.node_list) == ("", "n3")
    assert second.goes
    assert not second.is_over


@pytest.mark.parametrize(
    ("state", "number", "nodes"),
    [
        ("RUNNING", 12, {"nodes": "n[1-2]", "node_count": 2}),  # up to 23.02
        (["RUNNING"], 12, {"nodes": "n[1-2]", "node_count": {"set": True, "number": 2}}),
        (["RUNNING", "COMPLETING"], {"set": True, "number": 12}, {"nodes": "n[1-2]"}),
    ],
)
def test_the_json_of_every_version(state: object, number: object, nodes: dict[str, object]) -> None:
    tree = {"jobs": [{"job_id": number, "job_state": state, "comment": "c", **nodes}, None, {}]}
    (found,) = jobs_of_json(json.dumps(tree))
    assert (found.number, found.state, found.comment, found.node_list) == (
        "12",
        "RUNNING",
        "c",
        "n[1-2]",
    )
    assert found.completing == (isinstance(state, list) and "COMPLETING" in state)


def test_a_job_that_was_held_when_it_was_queued_again() -> None:
    (found,) = jobs_of_json(
        json.dumps({"jobs": [{"job_id": 1, "job_state": ["PENDING", "REQUEUE_HOLD"]}]})
    )
    assert found.state == "REQUEUE_HOLD"
    assert found.waits


def test_what_is_not_the_json_of_squeue_is_refused() -> None:
    for text in ("[]", '{"jobs": {}}', "slurm_load_jobs error"):
        with pytest.raises(ValueError):  # noqa: PT011  # json.loads has its own words
            jobs_of_json(text)


def test_accounting_says_who_cancelled() -> None:
    first, second = jobs_of_sacct("12|CANCELLED by 1000|0:15|n1\n13|COMPLETED|0:0|None assigned\n")
    assert (first.state, first.reason, first.is_over) == ("CANCELLED", "by 1000", True)
    assert (second.state, second.node_list) == ("COMPLETED", "")


def test_scontrol_tells_of_a_preemption() -> None:
    found = job_of_scontrol(SCONTROL)
    assert found is not None
    assert (found.number, found.preempted, found.nodes) == ("12", True, 2)
    assert job_of_scontrol("slurm_load_jobs error: Invalid job id specified") is None
