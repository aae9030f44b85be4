from __future__ import annotations

from dataclasses import replace

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from tests.cli.top.made_looks import job_of
from zerotools.cli.top.drawing.view_state import HELP, JOB, JOBS, LOG, ORDERS, ViewState
from zerotools.cli.top.screen.key_actions import (
    BEGINS,
    CANCEL,
    HOLD,
    LONGEST,
    NO_JOB,
    PRIORITY,
    QUIT,
    RESUME,
    KeyContext,
    LateResponses,
    UserAction,
    press,
    typed,
)

TWO = (job_of(3), job_of(4, "queued", "other"))
SHOWN = KeyContext(listed=TWO, job_rows=1)
STATE = ViewState(chosen=3)


def after(
    state: ViewState, *keys: str, shown: KeyContext = SHOWN
) -> tuple[ViewState, list[UserAction]]:
    wishes = []
    for key in keys:
        state, wish = press(state, key, key if len(key) == 1 else None, shown)
        wishes += [] if wish is None else [wish]
    return state, wishes


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        *((("down",), 4), (("j", "j"), 4), (("down", "up"), 3), (("end",), 4)),
        *((("G", "home"), 3), (("pagedown",), 4), (("pagedown", "k"), 3), (("x",), 3)),
    ],
)
def test_a_job_is_chosen(keys: tuple[str, ...], chosen: int) -> None:
    assert after(STATE, *keys)[0].chosen == chosen


def test_a_job_is_cancelled_after_yes_and_not_after_anything_else() -> None:
    asks, wishes = after(STATE, "c")
    assert asks.question.startswith("Cancel job 3 (tiny)? It ")
    assert wishes == []
    for key in ("n", "escape", "enter", "q", "c"):
        state, wishes = after(asks, key)
        assert (state.question, wishes) == ("", [])
    state, (wish,) = after(asks, "y")
    assert (state.question, wish) == ("", UserAction(CANCEL, TWO[0]))


def test_yes_means_the_job_that_was_asked_about() -> None:
    asks, _ = after(STATE, "c")
    # Meanwhile that one has gone, and another one is under the cursor.
    moved = replace(asks, chosen=4)
    assert after(moved, "y")[1] == [UserAction(CANCEL, TWO[0])]
    assert after(moved, "y", shown=KeyContext(listed=TWO[1:]))[1] == []


def test_a_job_is_held_after_yes_with_what_that_does_in_its_state() -> None:
    asks, _ = after(STATE, "p")
    assert asks.question == "Hold job 3 (tiny)? Then it saves and stops (holding), then it is held."
    assert after(asks, "y")[1] == [UserAction(HOLD, TWO[0])]
    assert after(asks, "n") == (STATE, [])
    assert "it does not start" in after(replace(STATE, chosen=4), "p")[0].question
    ended = KeyContext(listed=[job_of(3, "succeeded")])
    state, wishes = after(STATE, "p", "y", shown=ended)
    assert (state.question, wishes) == ("", [])
    state, _ = after(STATE, "p", shown=ended)
    assert state.message == ("job 3 (tiny) has succeeded, so it cannot be held", "warning")


def test_the_page_of_a_job_is_opened_and_left() -> None:
    page, _ = after(STATE, "enter")
    assert (page.page, page.chosen) == (JOB, 3)
    assert after(page, "down")[0].chosen == 4, "the page of another job"
    for key in ("enter", "q", "escape"):
        assert after(page, key) == (STATE, [])
    assert after(page, "c")[0].question.startswith("Cancel job 3")
    for key in ("l", "e", "question_mark"):
        assert after(page, key)[0].page in (LOG, HELP)
        for closing in ("q", "escape"):
            assert after(page, key, closing)[0] == page
            assert after(page, key, closing, closing)[0] == STATE


def test_a_log_shows_all_lines_or_those_with_errors() -> None:
    errors, _ = after(STATE, "e")
    assert (errors.page, errors.errors) == (LOG, True)
    assert after(errors, "e")[0] == after(STATE, "l")[0]
    assert after(STATE, "l", "e")[0] == errors
    assert after(errors, "q")[0] == STATE


def test_words_are_found_in_a_log_and_the_filter_of_jobs_stays() -> None:
    jobs, _ = after(STATE, "slash", "t", "enter")
    found, _ = after(jobs, "l", "up", "slash", "n", "a", "n", "backspace", "enter")
    assert (found.only, found.find, found.top, found.typed) == ("t", "na", None, False)
    assert typed(replace(found, typed=True), " -x").find == "na -x"
    cleared, _ = after(found, "escape")
    assert (cleared.page, cleared.find) == (LOG, "")
    assert after(found, "slash", "escape")[0] == cleared
    assert after(found, "q")[0] == after(cleared, "escape")[0] == jobs


def test_wishes() -> None:
    assert after(STATE, "r")[1] == [UserAction(RESUME, TWO[0])]
    assert after(STATE, "plus", "minus")[1] == [
        UserAction(PRIORITY, TWO[0], 1),
        UserAction(PRIORITY, TWO[0], -1),
    ]
    assert after(STATE, "q")[1] == [UserAction(QUIT)]


@pytest.mark.parametrize("key", ["c", "p", "r", "l", "e", "plus", "minus", "enter"])
def test_without_a_job_that_is_said(key: str) -> None:
    state, wishes = after(ViewState(), key, shown=KeyContext())
    assert (state.message, wishes, state.page) == (NO_JOB, [], JOBS)
    assert after(state, "down", shown=KeyContext())[0].message == ("", "")


def test_a_filter_is_typed() -> None:
    state, wishes = after(STATE, "slash", "q", "ü", "c", "backspace", "enter")
    assert (state.only, state.typed, wishes) == ("qü", False, [])
    assert after(state, "escape")[0].only == ""
    assert after(STATE, "slash", "a", "escape")[0] == STATE
    assert after(STATE, "slash", "a", "b", "ctrl+u")[0].only == ""
    pasted = typed(replace(STATE, typed=True), "a\nb" + "x" * 99)
    assert (pasted.only[:3], len(pasted.only)) == ("abx", 60)
    assert typed(STATE, "abc") == STATE


def test_orders_come_round() -> None:
    assert after(STATE, *["s"] * len(ORDERS))[0] == STATE


def test_the_keys_are_shown_and_left() -> None:
    shown, _ = after(STATE, "question_mark")
    assert shown.page == HELP
    assert after(shown, "c")[0] == shown
    for key in ("q", "escape", "question_mark"):
        assert after(shown, key) == (STATE, [])


def test_a_log_is_scrolled_and_followed() -> None:
    log = replace(SHOWN, log_lines=100, log_rows=10)
    state, _ = after(STATE, "l")
    assert (state.page, state.top) == (LOG, None)
    tops = [
        after(state, *keys, shown=log)[0].top
        for keys in (
            *(("up",), ("up", "down"), ("pageup",), ("home",), ("home", "down"), ("home", "end")),
            *(("home", "pagedown"), ("up", "f"), ("x",), ("home", "up")),
        )
    ]
    assert tops == [90, None, 83, 0, 1, None, 8, None, None, 0]
    assert after(replace(state, top=5), "q")[0] == STATE


def test_the_log_of_each_rank() -> None:
    state, _ = after(STATE, "l")  # of a job with two ranks
    assert [after(state, *["right"] * n)[0].rank for n in range(4)] == [0, 1, 0, 1]
    assert after(state, "left")[0].rank == 1
    assert after(state, "right", "q", "l")[0].rank == 0


ANSWER = "\x1b]11;rgb:0000/c0c0/r/q"
IDLE = {*BEGINS, "circumflex_accent"}
"""What does nothing."""


def left_of(text: str) -> list[str]:
    """The keys that are no answer, and do something."""
    late, parser = LateResponses(), XTermParser()
    events = [*parser.feed(text), *parser.feed("")]
    keys = [each.key for each in events if isinstance(each, Key)]
    return [key for key in keys if not late.consumes(key) and key not in IDLE]


@pytest.mark.parametrize("end", ["\x1b\\", "\x07"])
def test_an_answer_is_no_keys(end: str) -> None:
    assert left_of(f"a{ANSWER}{end}q") == ["a", "q"]
    assert left_of(f"{ANSWER}{end}{ANSWER}{end}r") == ["r"]


def test_what_is_pressed_is_pressed() -> None:
    assert left_of("r/]q]1r") == ["r", "slash", "q", "r"]


def test_one_that_was_cut_off_takes_no_more_than_one_can_have() -> None:
    left = left_of(ANSWER + "x" * 100 + "q")
    assert left[-1] == "q"
    assert len(left) >= 100 - LONGEST
