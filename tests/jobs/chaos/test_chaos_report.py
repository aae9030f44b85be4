"""What breaks a promise, and what does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.started import Started
from zerotools.jobs.chaos import chaos_report
from zerotools.jobs.chaos.chaos_report import Tally
from zerotools.jobs.chaos.own_processes import VARIABLE
from zerotools.jobs.chaos.toy_program import RunLog, final_state
from zerotools.jobs.chaos.toy_queue import ToyJob

NOTES = ["began 1 from 0", "step 1", "saved 1", f"done {final_state(1)}"]


TWICE = [
    *("began 1 from 0", "step 1", "step 2", "saved 2", "step 3"),
    *("began 2 from 2", "step 3", "step 4", "saved 4", "done"),
]


def job(tmp_path: Path, **view: Any) -> ToyJob:
    found = ToyJob("toy-1", 1, 0.1, 5, tmp_path / "notes", number=1)
    found.view = {"state": "succeeded", "reason": None, "attempts": [], **view}
    return found


def runs(lines: list[str]) -> dict[str, RunLog]:
    return {"toy-1": RunLog(lines, 1)}


def test_a_job_that_is_there_once_and_succeeded(tmp_path: Path) -> None:
    one = job(tmp_path)
    found = [
        chaos_report.of_queue([one], [{"id": 1, "name": "toy-1"}]),
        chaos_report.of_ends([one], runs(NOTES), None),
        *chaos_report.of_runs([one], runs(NOTES)),
        chaos_report.of_daemon([]),
        chaos_report.of_processes(tmp_path),
    ]
    assert [each.broken for each in found] == [[]] * 8
    assert all(each.is_upheld for each in found)


def test_a_job_that_is_lost_or_there_twice(tmp_path: Path) -> None:
    one = job(tmp_path)
    assert chaos_report.of_queue([one], []).broken == [
        "job 1 (toy-1) was acknowledged, but the queue does not have it"
    ]
    twice = [{"id": 1, "name": "toy-1"}, {"id": 2, "name": "toy-1"}]
    assert chaos_report.of_queue([one], twice).broken == ["toy-1 is in the queue 2 times"]


def test_another_end_than_the_right_one(tmp_path: Path) -> None:
    one = job(tmp_path, state="failed", reason="it crashed")
    assert chaos_report.of_ends([one], runs([]), None).broken == [
        "job 1 (toy-1) is failed, but should be succeeded: it crashed"
    ]
    one.ends |= {"failed"}
    assert chaos_report.of_ends([one], runs([]), None).is_upheld
    assert chaos_report.of_ends([one], runs([]), "too late").broken == ["too late"]


def test_a_success_that_is_none(tmp_path: Path) -> None:
    assert chaos_report.of_ends([job(tmp_path)], runs(NOTES[:2]), None).broken == [
        "job 1 (toy-1): its program stopped after step 1 of 1"
    ]


def test_what_the_program_noted(tmp_path: Path) -> None:
    lines = ["began 1 from 0", "step 1", "saved 1", "began 2 from 0", "step 2", "beside 3"]
    alone, newest, whole, _ = chaos_report.of_runs([job(tmp_path)], runs(lines))
    assert alone.broken == ["job 1 (toy-1): attempt 3 ran at the same time as another one"]
    assert newest.broken == [
        "job 1 (toy-1): attempt 2 began from step 0, although step 1 was saved"
    ]
    assert whole.broken == ["job 1 (toy-1): step 2 came after step 0"]


def test_an_attempt_after_one_that_finished(tmp_path: Path) -> None:
    attempts = [{"number": n, "run_dir": str(tmp_path / f"attempt-{n}")} for n in (1, 2, 3)]
    for each, outcome in zip(attempts, ("crashed", "finished", "finished"), strict=True):
        Path(str(each["run_dir"])).mkdir()
        (Path(str(each["run_dir"])) / "exit.json").write_text(json.dumps({"outcome": outcome}))
    *_, over = chaos_report.of_runs([job(tmp_path, attempts=attempts)], runs(NOTES))
    assert over.broken == ["job 1 (toy-1): another attempt followed attempt 2, which had finished"]


def test_a_process_that_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with Started(command, env={VARIABLE: str(tmp_path)}) as process:
        found = chaos_report.of_processes(tmp_path, patience=0.0)
        process.end()
    assert [f"pid {process.pid} " in sentence for sentence in found.broken] == [True]


def test_a_step_that_is_run_again_counts_once() -> None:
    tally = Tally()
    assert (tally.kept, tally.effective) == (1.0, 1.0)
    tally.add(TWICE, 0.5)
    tally.seconds += 4.0
    assert (tally.steps_run, tally.steps_kept, tally.attempts) == (5, 4, 2)
    assert (tally.kept, tally.effective) == (0.8, 0.5)


def test_what_was_not_saved_is_not_kept() -> None:
    tally = Tally()
    tally.add(["began 1 from 0", "step 1", "not saved 1: No space left on device"], 1.0)
    assert (tally.steps_run, tally.steps_kept) == (1, 0)
