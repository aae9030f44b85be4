from __future__ import annotations

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from zerotools.cli.top.screen.late_terminal_responses import BEGINS, LONGEST, LateResponses

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
