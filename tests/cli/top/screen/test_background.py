from __future__ import annotations

import os
import pty
import termios
from threading import Thread

import pytest

from harness.patience import patient
from zerotools.cli.top.screen.background import QUESTION, ask_terminal, background_of


@pytest.mark.parametrize(
    ("answer", "background"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", "light"),
        (b"\x1b]11;rgb:0000/2b2b/3636\x07\x1b[?1;2c", "dark"),
        (b"\x1b]11;rgba:ff/ff/ee/ff\x07", "light"),
        (b"\x1b]11;rgb:f/f/f\x07", "light"),
        (b"\x1b[?6c", None),
        (b"", None),
        (b"\x1b]11;nonsense\x07", None),
    ],
)
def test_what_a_terminal_answers(answer: bytes, background: str | None) -> None:
    assert background_of({"TERM": "xterm"}, lambda: answer) == background


@pytest.mark.parametrize(
    ("said", "background"),
    [("15;0", "dark"), ("0;15", "light"), ("0;default;7", "light"), ("12;8", "dark"), ("x", None)],
)
def test_the_environment_is_asked_next(said: str, background: str | None) -> None:
    assert background_of({"TERM": "xterm", "COLORFGBG": said}, lambda: b"") == background
    assert background_of({"COLORFGBG": said}) == background


@pytest.mark.parametrize("term", ["dumb", "linux", ""])
def test_a_terminal_that_would_show_the_question_is_not_asked(term: str) -> None:
    def ask() -> bytes:
        raise AssertionError

    assert background_of({"TERM": term}, ask) is None


def test_a_terminal_is_asked_without_echo_and_left_as_it_was() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    asked = []

    def answer() -> None:
        asked.append(os.read(ours, 100))
        os.write(ours, b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\")
        os.write(ours, b"\x1b[?62;22c")

    terminal = Thread(target=answer)
    terminal.start()
    said = ask_terminal(theirs, theirs, patient(20))
    terminal.join()
    assert asked == [QUESTION]
    assert background_of({"TERM": "xterm"}, lambda: said) == "light"
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_a_terminal_that_says_nothing_is_not_waited_for() -> None:
    ours, theirs = pty.openpty()
    assert ask_terminal(theirs, theirs, 0.01) == b""
    os.close(ours)
    os.close(theirs)


def test_what_is_no_terminal_is_not_asked() -> None:
    reading, writing = os.pipe()
    assert ask_terminal(reading, writing) == b""
    os.close(writing)
    assert os.read(reading, 10) == b""
    os.close(reading)
