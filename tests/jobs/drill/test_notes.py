"""What the notes of a toy program show."""

from __future__ import annotations

from pathlib import Path

from zerotools.jobs.drill.notes import NotedRun, read_notes
from zerotools.jobs.drill.toy_program import final_state

GOOD = [
    *("began 1 from 0", "step 1", "step 2", "saved 2", "step 3"),
    *("began 2 from 2", "step 3", "step 4", "saved 4", f"done {final_state(4)}"),
]


def wrong(lines: list[str], steps: int = 4) -> list[str]:
    run = NotedRun(lines, steps)
    return [*run.beside, *run.again, *run.lost, *run.late, *run.unfinished()]


def test_a_run_that_was_killed_and_went_on_is_whole() -> None:
    assert wrong(GOOD) == []
    assert NotedRun(GOOD, 4).saved == 4


def test_a_kill_between_a_checkpoint_and_its_note_is_no_loss() -> None:
    assert wrong([line for line in GOOD if line != "saved 2"]) == []


def test_a_kill_after_the_last_note_leads_to_an_attempt_with_nothing_to_do() -> None:
    assert wrong([*GOOD, "began 3 from 4", f"done {final_state(4)}"]) == []


def test_an_older_checkpoint_than_the_newest() -> None:
    lines = ["began 1 from 0", "step 1", "saved 1", "step 2", "saved 2", "began 2 from 1"]
    run = NotedRun(lines, 4)
    assert run.again == ["attempt 2 began from step 1, and step 2 was saved"]
    assert list(run.unfinished()) == ["its program stopped after step 1 of 4"]


def test_steps_that_are_lost() -> None:
    assert NotedRun(["began 1 from 3"], 4).lost == [
        "attempt 1 began from step 3, and step 0 was the last"
    ]
    assert NotedRun(["began 1 from 0", "step 2"], 4).lost == ["step 2 came after step 0"]
    lines = ["began 1 from 0", "step 1", "saved 1", "done 5"]
    assert NotedRun(lines, 4).lost == ["it was done after step 1 of 4"]


def test_a_state_that_does_not_have_every_step_once() -> None:
    lines = ["began 1 from 0", "step 1", "saved 1", "done 5"]
    assert NotedRun(lines, 1).lost == ["its last state is 5, and 1 steps, each once, give 1"]


def test_what_runs_after_the_end_and_beside_another() -> None:
    run = NotedRun([*GOOD, "began 3 from 4", "step 5", "beside 4"], 4)
    assert run.late == ["step 5 was run after the program was done"]
    assert run.beside == ["attempt 4 ran at the same time as another one"]


def test_the_last_step_must_be_saved() -> None:
    lines = ["began 1 from 0", "step 1", f"done {final_state(1)}"]
    assert wrong(lines, 1) == ["its last step 1 was not saved, step 0 was"]


def test_a_job_that_never_began_has_no_notes(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "none") == []
