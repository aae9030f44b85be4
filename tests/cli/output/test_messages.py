"""Messages: labels, hints on lines of their own, lines that break at words, and colour."""

from __future__ import annotations

import io

import pytest

from zerotools.cli.job_views import describe_job
from zerotools.cli.output import colours, messages


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize(
    ("message", "what", "hint"),
    [
        ("a: unknown key; did you mean b?", "a: unknown key", "did you mean b?"),
        ("x exists; y is older; remove it", "x exists; y is older", "remove it"),
        ("job 1 failed; its log: zerotools logs 1", "job 1 failed", "its log: zerotools logs 1"),
        ("it holds a part; the rest is missing", "it holds a part; the rest is missing", ""),
        ("2 problems:\n  a: bad; use b\n  c", "2 problems:\n  a: bad; use b\n  c", ""),
        (
            "j:1:2: x; write , there\n  1 | {a b}\n    |   ^",
            "j:1:2: x\n  1 | {a b}\n    |   ^",
            "write , there",
        ),
        ("x; useful things are there", "x; useful things are there", ""),
        ("2 ranks; read-only files are there", "2 ranks; read-only files are there", ""),
        (
            "job 3 is over; to train longer, submit it with more steps",
            "job 3 is over",
            "to train longer, submit it with more steps",
        ),
        (
            "python has no torch; type: python -m pip install torch",
            "python has no torch",
            "type: python -m pip install torch",
        ),
        ("a is missing; fetch it", "a is missing", "fetch it"),
        ("a: bad; stop.b: bad", "a: bad; stop.b: bad", ""),
        (
            "it is foreign; look at it, and remove it; or choose another output",
            "it is foreign",
            "look at it, and remove it; or choose another output",
        ),
    ],
)
def test_what_to_do_is_a_hint(message: str, what: str, hint: str) -> None:
    assert messages.split(message) == (what, hint)


def test_elsewhere_than_on_a_terminal_each_message_is_one_plain_line() -> None:
    out = io.StringIO()
    messages.print_error(f"{'word ' * 40}end; use less", out)
    assert out.getvalue() == f"error: {'word ' * 40}end\nhint: use less\n"


def test_a_terminal_gets_whole_words(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    path = "/a/long/path/" + "x" * 60
    messages.print_message(
        "error", f"the shard {path} is truncated: it has 10 bytes and 20 expected", terminal
    )
    lines = terminal.getvalue().splitlines()
    assert lines == [
        "error: the shard",
        f"  {path}",
        "  is truncated: it has 10 bytes and 20 expected",
    ]


def test_lists_of_problems_stay_lists(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    messages.print_error(f"2 problems:\n  one {'more ' * 14}\n  two", terminal)
    lines = terminal.getvalue().splitlines()
    assert lines[0] == "error: 2 problems:"
    assert lines[1].startswith("  one more")
    assert lines[2].startswith("    more")
    assert lines[-1] == "  two"
    assert max(map(len, lines)) < 60


def test_names_cannot_move_the_cursor(terminal: Terminal) -> None:
    messages.print_error("bad\x1b[2J name", terminal)
    assert "\x1b[2J" not in terminal.getvalue()
    assert "bad\\x1b[2J name" in terminal.getvalue()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(environment: dict[str, str], wanted: bool) -> None:
    assert colours.wants_colour(Terminal(), environment) is wanted
    assert not colours.wants_colour(io.StringIO(), environment)


def test_a_failed_job_does_not_look_like_one_that_succeeded(terminal: Terminal) -> None:
    failed, succeeded = (describe_job.paint_state(s, terminal) for s in ("failed   ", "succeeded"))
    assert failed == "\x1b[31mfailed\x1b[0m   "
    assert succeeded == "\x1b[32msucceeded\x1b[0m"
    assert describe_job.paint_state("failed", io.StringIO()) == "failed"
