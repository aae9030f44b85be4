from __future__ import annotations

import os
import pty
import termios
from threading import Thread

import pytest
from rich.color import Color
from rich.style import Style

from harness.patience import patient
from zerotools.cli.top.drawing.styled_lines import CURSOR
from zerotools.cli.top.screen.colour_theme import (
    QUESTION,
    ask_terminal,
    background_of,
    styles_of,
)

MEANINGS = {meaning for meaning in styles_of(None, colours=True) if not meaning.startswith(CURSOR)}


def brightness(color: Color) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_on_light_are_readable() -> None:
    for style in styles_of("light", colours=True).values():
        if style.color is not None:
            behind = 1.0 if style.bgcolor is None else brightness(style.bgcolor)
            assert (behind + 0.05) / (brightness(style.color) + 0.05) >= 3.6, style
            assert style.bgcolor is not None or 1.05 / (brightness(style.color) + 0.05) >= 4.5


def test_on_dark_and_unknown_the_terminals_own_colours_are_taken() -> None:
    for background in ("dark", None, "auto"):
        colours = [style.color for style in styles_of(background, colours=True).values()]
        assert all(color is None or color.number < 16 for color in colours)  # type: ignore[operator]


@pytest.mark.parametrize("background", ["light", "dark", None])
def test_without_colours_there_are_none(background: str | None) -> None:
    styles = styles_of(background, colours=False)
    assert styles.keys() == styles_of(background, colours=True).keys()
    assert all(style.color is None and style.bgcolor is None for style in styles.values())
    assert styles["bad"] == Style.parse("bold")


def test_what_is_under_the_cursor_is_never_shown_by_colour_alone() -> None:
    for meaning in MEANINGS:
        for background in ("light", "dark"):
            assert styles_of(background, colours=True)[f"{CURSOR}{meaning}"].bold
        assert styles_of(None, colours=True)[f"{CURSOR}{meaning}"].reverse
        assert styles_of("dark", colours=False)[f"{CURSOR}{meaning}"].reverse


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
