"""The program of the toy jobs, outside of a daemon."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from pathlib import Path

from harness.started import Started
from zerotools.jobs.chaos import toy_program
from zerotools.jobs.chaos.toy_program import (
    EXIT_BESIDE,
    RunLog,
    ToyProgram,
    final_state,
    read_notes,
    state_after,
)
from zerotools.ops.inspection.completeness import check_completeness

GOOD = [
    *("began 1 from 0", "step 1", "step 2", "saved 2", "step 3"),
    *("began 2 from 2", "step 3", "step 4", "saved 4", f"done {final_state(4)}"),
]


def options(tmp_path: Path, **changes: object) -> argparse.Namespace:
    usual = {"steps": 6, "pace": 0.0, "every": 2, "notes": tmp_path / "notes"}
    return argparse.Namespace(**{**usual, "checkpoints": tmp_path / "checkpoints", **changes})


def test_a_whole_run(tmp_path: Path) -> None:
    assert ToyProgram(options(tmp_path)).run() == 0
    lines = read_notes(tmp_path / "notes")
    assert lines[0] == "began 0 from 0"
    assert lines[-2:] == ["saved 6", f"done {final_state(6)}"]
    run = RunLog(lines, 6)
    assert (run.lost, run.repeated, list(run.unfinished()), run.saved) == ([], [], [], 6)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        *("step-00000002", "step-00000004", "step-00000006")
    ]


def test_what_it_saves_is_a_checkpoint_from_which_it_goes_on(tmp_path: Path) -> None:
    program = ToyProgram(options(tmp_path, steps=4))
    program.run()
    newest = tmp_path / "checkpoints" / "step-00000004"
    seen = check_completeness(newest)
    assert (seen.is_checkpoint, seen.problem) == (True, None)
    assert program.load(str(newest)) == (4, final_state(4))
    assert program.load(None) == (0, 0)


def test_it_keeps_few_checkpoints_also_where_a_kill_left_half_of_one(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / ".old-step-00000001"
    half.mkdir(parents=True)
    (half / "model.safetensors").touch()
    ToyProgram(options(tmp_path, every=1)).run()
    assert len(list((tmp_path / "checkpoints").iterdir())) == toy_program.KEPT


def test_it_notices_another_attempt(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "notes.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert ToyProgram(options(tmp_path)).run() == EXIT_BESIDE
    os.close(lock)
    assert read_notes(tmp_path / "notes") == ["beside 0"]


def test_the_state_knows_the_order_of_the_steps() -> None:
    assert state_after(state_after(0, 1), 2) == final_state(2)
    assert state_after(state_after(0, 2), 1) != final_state(2)


def test_it_runs_by_its_path(tmp_path: Path) -> None:
    command = [sys.executable, "-P", toy_program.__file__, "--steps", "1", "--pace", "0"]
    places = ["--notes", tmp_path / "notes", "--checkpoints", tmp_path / "checkpoints"]
    with Started([*command, "--every", "1", *places]) as process:
        assert process.wait(20) == 0
    assert read_notes(tmp_path / "notes")[-1] == f"done {final_state(1)}"


def wrong(lines: list[str], steps: int = 4) -> list[str]:
    run = RunLog(lines, steps)
    return [*run.overlapping, *run.repeated, *run.lost, *run.after_end, *run.unfinished()]


def test_a_run_that_was_killed_and_went_on_is_whole() -> None:
    assert wrong(GOOD) == []
    assert RunLog(GOOD, 4).saved == 4


def test_a_kill_between_a_checkpoint_and_its_note_is_no_loss() -> None:
    assert wrong([line for line in GOOD if line != "saved 2"]) == []


def test_a_kill_after_the_last_note_leads_to_an_attempt_with_nothing_to_do() -> None:
    assert wrong([*GOOD, "began 3 from 4", f"done {final_state(4)}"]) == []


def test_an_older_checkpoint_than_the_newest() -> None:
    lines = ["began 1 from 0", "step 1", "saved 1", "step 2", "saved 2", "began 2 from 1"]
    run = RunLog(lines, 4)
    assert run.repeated == ["attempt 2 began from step 1, although step 2 was saved"]
    assert list(run.unfinished()) == ["its program stopped after step 1 of 4"]


def test_steps_that_are_lost() -> None:
    assert RunLog(["began 1 from 3"], 4).lost == [
        "attempt 1 began from step 3, but the last step before it was 0"
    ]
    assert RunLog(["began 1 from 0", "step 2"], 4).lost == ["step 2 came after step 0"]
    lines = ["began 1 from 0", "step 1", "saved 1", "done 5"]
    assert RunLog(lines, 4).lost == ["it finished after step 1 of 4"]


def test_a_state_that_does_not_have_every_step_once() -> None:
    lines = ["began 1 from 0", "step 1", "saved 1", "done 5"]
    assert RunLog(lines, 1).lost == [
        "its last state is 5, but after 1 steps, each run once, it must be 1"
    ]


def test_what_runs_after_the_end_and_beside_another() -> None:
    run = RunLog([*GOOD, "began 3 from 4", "step 5", "beside 4"], 4)
    assert run.after_end == ["step 5 was run after the last step"]
    assert run.overlapping == ["attempt 4 ran at the same time as another one"]


def test_the_last_step_must_be_saved() -> None:
    lines = ["began 1 from 0", "step 1", f"done {final_state(1)}"]
    assert wrong(lines, 1) == ["its last step 1 was not saved; the last saved step is 0"]


def test_a_job_that_never_began_has_no_notes(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "none") == []
