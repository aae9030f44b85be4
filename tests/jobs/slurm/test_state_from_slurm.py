"""F67 and F68: what follows from silence, from a purged job, and from what Slurm says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import programs
from zerotools.jobs.slurm.slurm_commands import ControllerJob
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.state_from_slurm import Known, state_and_reason
from zerotools.jobs.slurm.submit_to_slurm import submit_job

RUNS = {"state": "running", "reason": None}


def known(**changes: Any) -> Known:
    given: dict[str, Any] = {
        "view": None,
        "end": None,
        "asked": False,
        "controller": None,
        "silent": None,
        "quiet_seconds": None,
        "submitted_seconds": 10.0,
    }
    return Known(**{**given, **changes})


def slurm(state: str, reason: str = "") -> ControllerJob:
    return ControllerJob(number="12", state=state, reason=reason)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"controller": slurm("PENDING", "Resources")}, "queued", "Slurm: Resources"),
        (
            {"view": RUNS, "controller": slurm("PENDING", "BeginTime"), "quiet_seconds": 1.0},
            "queued",
            "BeginTime",
        ),
        ({"controller": slurm("RUNNING")}, "launching", ""),
        ({"view": RUNS, "controller": slurm("RUNNING"), "quiet_seconds": 1.0}, "running", ""),
        ({"view": RUNS, "controller": slurm("SUSPENDED")}, "running", "suspended"),
        ({"controller": slurm("PENDING", "launch failed requeued held")}, "on_hold", "release 12"),
        ({"controller": slurm("REQUEUE_HOLD", "JobHeldUser")}, "on_hold", "release 12"),
        ({"controller": slurm("PENDING"), "asked": True}, "cancelled", "before it began"),
        ({"view": RUNS, "controller": slurm("NODE_FAIL")}, "failed", "node fail"),
        ({"view": RUNS, "controller": slurm("TIMEOUT")}, "failed", "timeout"),
        ({"view": RUNS, "controller": slurm("CANCELLED", "by 1000")}, "cancelled", "by 1000"),
        (
            {"controller": slurm("CANCELLED", "DependencyNeverSatisfied")},
            "cancelled",
            "a job that it depends on did not succeed",
        ),
        ({"view": RUNS, "controller": slurm("COMPLETED")}, "failed", "before it recorded how"),
    ],
)
def test_by_the_word_of_slurm(changes: dict[str, Any], state: str, words: str) -> None:
    found, reason = state_and_reason(known(**changes))
    assert (found, words in (reason or "")) == (state, True), reason


def test_a_job_that_its_user_cancelled_in_slurm_is_said_to_be_cancelled() -> None:
    view = {"state": "queued", "reason": "Slurm ends its allocation; saved at step 7 and stopped"}
    given = {"view": view, "controller": slurm("CANCELLED"), "quiet_seconds": 1.0}
    said = "cancelled in Slurm; saved at step 7 and stopped"
    assert state_and_reason(known(**given)) == ("cancelled", said)
    timed_out = {**given, "controller": slurm("TIMEOUT"), "asked": True}
    state, reason = state_and_reason(known(**timed_out))
    assert (state, "cancelled; Slurm ended the job: timeout" in str(reason)) == ("cancelled", True)


def test_an_end_that_was_written_counts_whatever_slurm_says() -> None:
    end = {"state": "succeeded", "reason": None}
    for controller in (None, slurm("RUNNING"), slurm("CANCELLED")):
        assert state_and_reason(known(view=RUNS, end=end, controller=controller))[0] == "succeeded"
    assert state_and_reason(known(view=RUNS, end=end, silent="no answer"))[0] == "succeeded"


def test_of_silence_nothing_follows() -> None:
    state, reason = state_and_reason(known(view=RUNS, silent="no answer", quiet_seconds=400.0))
    assert state == "running"
    assert "400 s ago" in (reason or "")
    assert state_and_reason(known(silent="no answer", asked=True))[0] == "queued"


def test_a_job_that_slurm_does_not_know_is_judged_by_its_records() -> None:
    assert state_and_reason(known(view=RUNS, quiet_seconds=5.0))[0] == "running"
    state, reason = state_and_reason(known(view=RUNS, quiet_seconds=600.0))
    assert state == "failed"
    assert "its records have not changed for 10 min" in (reason or "")
    assert state_and_reason(known(submitted_seconds=5.0))[0] == "queued"
    assert state_and_reason(known(submitted_seconds=500.0))[0] == "failed"
    assert state_and_reason(known(view=RUNS, quiet_seconds=600.0, asked=True))[0] == "cancelled"


def test_one_damaged_record_hides_no_other_job(tmp_path: Path) -> None:
    home = tmp_path / "home"
    commands = programs(tmp_path, squeue="exit 0")
    damaged, _ = submit_job(commands, home, job({}, name="damaged"))
    submit_job(commands, home, job({}, name="whole"))
    (damaged.path / "job.json").write_text('{"spec')
    (damaged.path / "view.json").write_text('{"a": 1}')
    views = {view["name"]: view for view in SlurmJobs(commands, home).jobs()}
    assert views["whole"]["reason"] == "Slurm does not list the job yet"
    assert "job.json" in views[damaged.path.name]["reason"]
