"""The verbs for jobs: every state has one row, and the rows are what the transitions allow."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.cli.command_table import OLD_NAMES
from zerotools.jobs import states
from zerotools.jobs.states import OLD_VERBS, VERB_ROWS, VERBS
from zerotoolsd.queue import lifecycle

EVENTS = {
    "hold": (lifecycle.PUT_ON_HOLD, lifecycle.PAUSE),
    "release": (lifecycle.RELEASED, lifecycle.UNPAUSED, lifecycle.RESUME),
}


def test_every_state_is_in_one_row() -> None:
    listed = [state for each in VERB_ROWS for state in each.states]
    assert sorted(listed) == sorted(states.STATES)


@pytest.mark.parametrize("row", VERB_ROWS, ids=lambda row: row.job)
def test_what_is_refused_has_no_transition(row: states.VerbRow) -> None:
    for verb, events in EVENTS.items():
        for state in row.states:
            allowed = any((state, event) in lifecycle.TRANSITIONS for event in events)
            assert allowed != getattr(row, verb).startswith("refused"), (state, verb)
    assert row.retry.startswith("a new job") == (
        row.states < states.TERMINAL and len(row.states) > 1
    )


def test_a_state_completes_a_sentence_about_a_job() -> None:
    said = {state: states.predicate(state) for state in states.STATES}
    assert said["succeeded"] == "has succeeded"
    assert said["failed"] == "has failed"
    assert said["cancelled"] == "was cancelled"
    assert said["stopped"] == "was stopped"
    assert said["running"] == "is running"
    assert said["on_hold"] == "is held"


def test_two_words_stand_for_every_kind_of_hold() -> None:
    words = {
        states.display_name(each) for row in VERB_ROWS if "held" in row.job for each in row.states
    }
    assert words == {"held", "holding"}
    assert states.states_of("held") == (states.ON_HOLD, states.PAUSED, states.HELD)
    assert states.states_of("holding") == (states.PAUSING,)
    assert [states.states_of(word) for word in ("running", "on_hold")] == [("running",), ()]
    assert states.states_of("starting") == (states.LAUNCHING, states.RUNNING)
    stored = {states.display_name(state) for state in states.STATES}
    assert set(states.STATE_WORDS) == stored | set(states.RUNNING_WORDS) == set(states.MEANINGS)


PHASE = {"name": "step", "last_step": 90.0, "last_progress": 95.0}


@pytest.mark.parametrize(
    ("changes", "age_seconds", "word", "since"),
    [
        ({}, 5.0, "running", 10.0),
        ({"name": "loading", "last_step": None}, 900.0, "starting", 10.0),
        ({"doing": "importing torch", "name": None, "last_step": None}, 900.0, "starting", 10.0),
        ({"name": None, "last_step": None}, 59.0, "starting", 10.0),
        ({"name": None, "last_step": None}, 60.0, "running", 10.0),
        ({"name": "saving"}, 900.0, "saving", 90.0),
        ({"name": "saving", "waits_for": {"since": 92.0}}, 900.0, "saving", 92.0),
        ({"late": True}, 900.0, "late", 90.0),
        ({"quiet": True, "name": "saving"}, 900.0, "late", 95.0),
        ({"stalled": True, "quiet": True, "waits_for": {"since": 93.0}}, 900.0, "stalled", 93.0),
        ({"stalled": True, "last_progress": None}, 900.0, "stalled", 90.0),
    ],
)
def test_a_running_job_has_a_word_for_its_progress_and_since_when(
    changes: dict[str, Any], age_seconds: float, word: str, since: float
) -> None:
    phase = {**PHASE, **changes}
    assert states.display_name("running", phase, age_seconds) == word
    assert states.since_of(word, phase, 10.0) == since
    assert states.display_name("yielding", phase, age_seconds) == "yielding"


def test_old_names_of_commands_are_those_of_requests() -> None:
    assert list(OLD_NAMES) == list(OLD_VERBS)
    for old, new in OLD_VERBS.items():
        assert OLD_NAMES[old].now.startswith(f"zerotools {new}")


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_terminal_and_has_every_row(verb: str) -> None:
    lines = states.help_of(verb).splitlines()
    assert max(map(len, lines)) <= 76, "click indents them by two"
    for row in VERB_ROWS:
        assert any(row.job in line and getattr(row, verb) in line for line in lines)
