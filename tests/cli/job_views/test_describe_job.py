"""A job that runs and does not get on has a state of its own, the same in every view."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.top.made_looks import NOW, PHASE, a_look, job_of, meaning_in, text_of
from tests.daemon.http.api.made_views import STEP
from zerotools.cli.commands import explain, show
from zerotools.cli.job_views import describe_job
from zerotools.cli.job_views.describe_job import (
    outcome,
    progress_of,
    reason_text,
    remaining_seconds,
    shown_state,
)
from zerotools.cli.job_views.machine_screen import MonitorView, draw
from zerotools.cli.job_views.process_owners import Owners
from zerotools.cli.job_views.queue_table import queue_lines
from zerotools.cli.top.drawing.job_detail_rows import _describe_state
from zerotools.cli.top.drawing.job_rows import JobColumns, job_line
from zerotools.jobs.states import since_of

NO_RETRIES: dict[str, Any] = dict.fromkeys(("cause", "cause_max", "after", "next_try"))
NO_RETRIES |= {"used": 0, "max": 0, "cause_ends": 0, "rule": "auto", "counts": True}
STALL = "rank 1 has been in step 812 for 10 min, and the others wait for it"
STALLED = {"late": True, "last_step": NOW - 700, "stalled": True, "stall": STALL}
LATE = {"late": True, "last_step": NOW - 180, "step_seconds": 0.4}


def job(phase: dict[str, Any]) -> Any:
    return job_of(3, phase={**PHASE, **phase})


@pytest.mark.parametrize(
    ("phase", "state", "meaning"),
    [
        ({}, "running", "busy"),
        (LATE, "late 3m", "warning"),
        ({**LATE, "late": False, "step_is_old": True}, "running", "busy"),
        ({**LATE, "late": False, "name": "complete"}, "running", "busy"),
        ({"quiet": True, "last_progress": NOW - 400}, "late 6m", "warning"),
        (STALLED, "stalled 11m", "bad"),
        ({"name": "saving", "last_step": NOW - 9}, "saving 9s", "busy"),
        ({"name": "loading", "last_step": None}, "starting 1h", "busy"),
    ],
)
def test_the_state_is_the_same_in_every_view(
    phase: dict[str, Any], state: str, meaning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    found = job(phase)
    begun = since_of(found["state_word"], found["phase"], found["started"])
    found = {**found, "state_since": begun}
    assert found["state_word"] == state.split()[0], "in JSON"
    line = job_line(found, JobColumns.of(100, [found], NOW), 100, NOW, mark=" ")
    assert meaning_in(line, state) == meaning
    tree = {
        **found,
        "why": None,
        "place": None,
        "holders": [],
        "retries": NO_RETRIES,
        "end": None,
    }
    tree |= {"resumed_from": None, "notifications": [], "events": []}
    snapshot = a_look(found).snapshot
    monitor = MonitorView(snapshot, daemon="", jobs=[{**found, "attempt": None}])
    pages = {
        "queue": queue_lines([found], 200),
        "monitor": draw(monitor, Owners({}, {}), 200),
        "show": show.page(found, 200),
        "explain": explain.page(found, tree, NOW),
        "top": [text_of(line)],
        "detail": ["".join(_describe_state(found, a_look(found), NOW))],
    }
    assert {name: state in "\n".join(lines) for name, lines in pages.items()} == dict.fromkeys(
        pages, True
    )
    if phase is STALLED:
        said = [name for name in ("queue", "show", "explain") if STALL in "\n".join(pages[name])]
        assert said == ["queue", "show", "explain"]
    if phase is LATE:
        assert "no step for 3 min 00 s (steps take 0.4 s)" in "\n".join(pages["explain"])


def test_a_job_that_gives_way_or_is_over_is_not_shown_as_stalled() -> None:
    for state in ("stopping", "yielding", "held"):
        assert shown_state({**job(STALLED), "state": state}) == state
    assert shown_state({**job({}), "phase": None}) == "running"


def test_a_phase_says_how_long_it_takes_and_how_long_it_usually_does_here() -> None:
    phase = {"doing": "loading", "since": 1000.0, "last_progress": 1000.0, "quiet": False}
    shown = {**job({}), "reason": "loading", "phase": {**phase, "last_line": None}}
    assert reason_text(shown, now=1012.0) == "loading for 12 s"
    shown["phase"] = {**shown["phase"], "usual_seconds": 40.0}
    assert reason_text(shown, now=1012.0) == "loading for 12 s (usually 40 s here)"
    shown |= {
        "usual_start_seconds": 90.0,
        "attempt": {**(shown["attempt"] or {}), "started": 990.0},
    }
    said = (
        "loading for 12 s (usually 40 s here), 22 s since the start, first step usually after "
        "1 min 30 s"
    )
    assert reason_text(shown, now=1012.0) == said
    waits = {**shown, "phase": None, "reason": "waits for memory"}
    said = "waits for memory; usually 1 min 30 s from the start to the first step here"
    assert reason_text(waits, now=1012.0) == said


@pytest.mark.parametrize(("device", "what"), [("cuda", "GPU"), ("cpu", "CPU")])
def test_ranks_are_those_of_gpus_or_of_processors(device: str, what: str) -> None:
    one = {"device": device, "world_size": 2, "spec": {"train": {"steps": 40}}}
    assert describe_job.ranks(one) == f"2 {what}"
    assert describe_job.ranks({**one, "sizes": [2, 4, 8]}) == f"2-8 {what}"
    assert describe_job.plan({**one, "stage": 3}).startswith(f"2 ranks on {what}")


def test_a_phase_of_one_rank_is_told_once() -> None:
    phase = {"doing": "importing torch", "since": 1000.0, "last_progress": 1000.0, "quiet": False}
    late = {"rank": 0, "at": "importing", "since": 1001.0, "state": None}
    shown = {**job({}), "reason": "importing torch", "world_size": 1}
    shown["phase"] = {**phase, "last_line": None, "waits_for": late}
    assert reason_text(shown, now=1030.0) == "importing torch for 30 s"
    shown["phase"] |= {"waits_for": {**late, "state": "T"}}
    assert reason_text(shown, now=1030.0).endswith(
        "it has been in importing for 29 s (stopped by a signal)"
    )
    shown |= {"world_size": 2}
    said = "(stopped by a signal), and the others wait for it"
    assert reason_text(shown, now=1030.0).endswith(said)


@pytest.mark.parametrize(("step", "steps"), [(12, 0), ("x", 40), (50, 40), (2**70, 40), (None, 1)])
def test_progress_is_within_its_bounds(step: object, steps: object) -> None:
    job = {**job_of(3, progress={**STEP, "step": step, "steps": steps}), "spec": {}}
    done, total = progress_of(job)
    assert 0 <= done <= max(total, 0)


def test_the_time_left_is_what_the_ranks_reckon_unless_it_is_old() -> None:
    assert remaining_seconds(job_of(3, progress={**STEP, "seconds_left": 99.0})) == 99.0
    assert remaining_seconds(job_of(3)) == 14.0
    assert remaining_seconds(job_of(3, phase={**PHASE, "late": True})) is None
    assert remaining_seconds(job_of(3, "queued", progress=STEP)) is None


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_is_told_with_what_failed_after_it(state: str) -> None:
    ended = job_of(3, state=state, reason="the export failed: no room", ended=NOW)
    assert outcome(ended).endswith(": the export failed: no room")
    assert outcome({**ended, "reason": None}).startswith(state)
