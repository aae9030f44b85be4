"""How attempts ended that were asked to, what they lost, and which jobs would save at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.made_attempts import an_attempt_row
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.make_end_event import end_event, outcome_of, steps_lost
from zerotoolsd.dispatch.end_jobs_for_memory import why_not_saved
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.supervisor.attempt_plan import OUTSIDE


def a_row(spec: JobSpec, state: str = "pausing", best_step: int = 0) -> JobRow:
    return JobRow(
        id=1,
        uid=0,
        name="tiny",
        spec_text="{}",
        given_text=None,
        spec_version="0.1.0",
        output_dir="/out",
        standing=JobStatus(state=state, best_step=best_step),
        created=1.0,
        started=2.0,
        ended=None,
    ).with_reading(spec)


def script(**table: Any) -> JobSpec:
    tree = {"command": ["train.py"], "directory": "/w", **table}
    return job_from_dict(
        {"engine": "script", "device": "cpu", "ranks": 1, "script": tree}, source="job"
    )


TRAINER = make_job("")


@pytest.mark.parametrize(
    ("done", "saved", "best", "resumed", "lost"),
    [
        (12, 12, 0, None, 0),
        (12, 10, 0, None, 2),
        (12, None, 0, None, 12),
        (12, None, 9, "/out/step-00000009", 3),
        (105, None, 0, "/elsewhere/step-00000100", 5),
        (105, None, 0, "/elsewhere", None),
        (105, 103, 0, "/elsewhere", 2),
        (0, None, 9, "/out/step-00000009", 0),
        (None, None, 0, None, None),
        (10**30, None, 0, None, None),
    ],
)
def test_steps_are_lost_that_no_checkpoint_has(
    done: int | None, saved: int | None, best: int, resumed: str | None, lost: int | None
) -> None:
    record: dict[str, Any] = {"steps_done": done}
    if saved is not None:
        record["checkpoint"] = {"step": saved}
    attempt = an_attempt_row(resumed_from=resumed)
    assert steps_lost(a_row(TRAINER, best_step=best), attempt, record) == lost


def test_of_a_program_that_reports_no_steps_nobody_knows_what_it_lost() -> None:
    record = {"steps_done": 0}
    assert steps_lost(a_row(script()), an_attempt_row(), record) is None
    assert steps_lost(a_row(TRAINER), an_attempt_row(), record) == 0


@pytest.mark.parametrize("exit_code", [75, 0])
def test_a_sigterm_without_a_reason_is_the_daemons_where_the_job_gives_way(exit_code: int) -> None:
    record = {"outcome": "crashed", "stop_reason": OUTSIDE, "rank": None, "exit_code": exit_code}
    assert outcome_of(a_row(TRAINER, "pausing"), record) == "stopped"
    assert outcome_of(a_row(TRAINER, "yielding"), record) == "stopped"
    assert outcome_of(a_row(TRAINER, "running"), record) == "crashed"
    assert outcome_of(a_row(TRAINER, "pausing"), {**record, "rank": 0}) == "crashed"
    assert outcome_of(a_row(TRAINER, "pausing"), {**record, "stop_reason": "pause"}) == "crashed"


def test_a_program_saves_where_its_checkpoints_are_known() -> None:
    told = an_attempt_row(result={"checkpoint": {"step": 4, "path": "/w/ck"}})
    assert why_not_saved(a_row(TRAINER), []) is None
    assert why_not_saved(a_row(script(checkpoint_dir="/w/ck")), []) is None
    assert why_not_saved(a_row(script()), [an_attempt_row(), told]) is None
    why = why_not_saved(a_row(script()), [an_attempt_row()])
    assert why is not None
    assert "names no checkpoint_dir" in why


@pytest.mark.parametrize("said", ["pid 7 (python3)\nstill ran", None, 7])
def test_what_a_finished_script_left_running_is_told(said: object) -> None:
    record = {"outcome": "finished", "cause": "finished", "cut_short": said}
    note = end_event(a_row(script(), "running"), record, asked=False).note
    assert note == ("pid 7 (python3) still ran" if isinstance(said, str) else None)
