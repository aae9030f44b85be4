"""Since when an attempt takes no step, by what its supervisor wrote and by what ranks said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.attempts.progress_report.stall_report import Clocks, standstill

NOW = Clocks(monotonic=1061.0, time=2_000_061.0)
RANKS = [
    {"rank": 0, "phase": "step", "at": "the all-reduce of step 812", "since_clock": 1000.5},
    {"rank": 1, "phase": "step", "at": "step 812", "since_clock": 1000.0, "state": "T"},
]
WRITTEN = {
    "last_step_clock": 1000.0,
    "step_seconds": 0.4,
    "deadline_seconds": 600.0,
    "stalled": None,
    "awaited": 1,
    "ranks": RANKS,
}


def write(run_dir: Path, **changes: Any) -> None:
    (run_dir / "heartbeats.json").write_text(json.dumps({**WRITTEN, **changes}))


def test_what_the_supervisor_wrote_is_told_in_seconds_since_1970(tmp_path: Path) -> None:
    write(tmp_path)
    assert standstill(tmp_path, None, NOW) == {
        "name": "step",
        "last_step": 2_000_000.0,
        "step_seconds": 0.4,
        "step_is_old": True,
        "late": True,
        "waits_for": {"rank": 1, "at": "step 812", "since": 2_000_000.0, "state": "T"},
        "deadline_seconds": 600.0,
        "stalled": False,
        "stall": None,
    }
    write(tmp_path, stalled="rank 1 has been ...")
    assert standstill(tmp_path, None, NOW)["stalled"] is True


def test_a_clock_that_was_set_changes_no_age(tmp_path: Path) -> None:
    write(tmp_path)
    step = {"time": 2_000_000.0, "step_seconds": 0.4}
    tomorrow = Clocks(monotonic=1001.0, time=2_086_400.0)
    found = standstill(tmp_path, step, tomorrow)
    assert (found["last_step"], found["late"]) == (2_086_399.0, False)


@pytest.mark.parametrize(
    ("age", "step_seconds", "late"),
    [
        (59.0, 0.4, False),
        (61.0, 0.4, True),
        (81.0, 20.0, True),
        (61.0, None, True),
    ],
)
def test_a_last_step_is_old_after_a_few_steps(
    tmp_path: Path, age: float, step_seconds: float | None, late: bool
) -> None:
    write(tmp_path, last_step_clock=1061.0 - age, step_seconds=step_seconds)
    assert standstill(tmp_path, None, NOW)["late"] is late
    ranks = [{**RANKS[0], "phase": "evaluating"}]
    write(tmp_path, last_step_clock=1061.0 - age, step_seconds=step_seconds, ranks=ranks)
    found = standstill(tmp_path, None, NOW)
    assert (found["step_is_old"], found["late"]) == (True, False), "it is in no step"


def test_an_attempt_of_an_older_supervisor_has_the_time_of_its_last_step(tmp_path: Path) -> None:
    found = standstill(tmp_path, {"time": 2_000_000.0, "step_seconds": 0.5}, NOW)
    assert (found["last_step"], found["step_seconds"], found["late"]) == (2_000_000.0, 0.5, True)
    assert (found["name"], found["waits_for"]) == (None, None)
    assert standstill(tmp_path, None, NOW)["late"] is False, "it has taken none"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ranks": 7, "last_step_clock": "x", "step_seconds": NaN, "awaited": []}',
        '{"ranks": [{"rank": true}, 7, {"rank": 1, "since_clock": 1e300, "at": 9, "state": "XX"}],'
        ' "awaited": 1, "last_step_clock": -1.0, "step_seconds": true, "deadline_seconds": 1e400}',
    ],
)
def test_what_a_rank_makes_up_does_no_harm(tmp_path: Path, text: str) -> None:
    (tmp_path / "heartbeats.json").write_text(text)
    found = standstill(tmp_path, {"time": "soon", "step_seconds": []}, NOW)
    assert (found["last_step"], found["step_seconds"], found["late"]) == (None, None, False)
    assert found["waits_for"] in (None, {"rank": 1, "at": "", "since": None, "state": None})
    (tmp_path / "heartbeats.json").unlink()
    os.mkfifo(tmp_path / "heartbeats.json")
    assert standstill(tmp_path, None, NOW)["name"] is None
