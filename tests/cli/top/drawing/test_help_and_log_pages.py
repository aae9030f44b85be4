from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.cli.top.made_looks import text_of
from zerotools.cli.top.drawing.help_and_log_pages import fold, help_lines, log_meaning, log_page
from zerotools.cli.top.drawing.styled_lines import plain, width


def test_the_keys_fit_eighty_columns_and_24_rows() -> None:
    lines = help_lines(80)
    assert len(lines) <= 23
    assert all(width(line) <= 80 for line in lines)
    assert not any(text_of(line).endswith("…") for line in lines)
    assert all(width(line) <= 60 for line in help_lines(60))


def test_the_end_of_a_log_is_shown_and_followed() -> None:
    lines = [f"line {n}" for n in range(100)]
    page = [text_of(line) for line in log_page("log", lines, None, 40, 5)]
    assert page[0].endswith(" follows ─")
    assert page[1:] == ["line 96", "line 97", "line 98", "line 99"]


def test_a_log_is_shown_from_a_line_on() -> None:
    lines = [f"line {n}" for n in range(100)]
    page = [text_of(line) for line in log_page("log", lines, 10, 40, 4)]
    assert page[0].endswith(" line 11 of 100 ─")
    assert page[1:] == ["line 10", "line 11", "line 12"]


def test_long_lines_take_as_many_as_they_need() -> None:
    page = log_page("log", ["short", "x" * 25], None, 10, 5)
    assert [text_of(line) for line in page[1:]] == ["short", "x" * 10, "x" * 10, "x" * 5]
    cut = log_page("log", ["x" * 25], None, 10, 3)
    assert [text_of(line) for line in cut[1:]] == ["x" * 10, "x" * 5]
    assert text_of(log_page("log", [], None, 60, 5)[1]) == "this log is still empty"


@given(st.text(max_size=60), st.integers(2, 12))
def test_nothing_is_lost_by_folding(text: str, columns: int) -> None:
    parts = fold(text, columns)
    assert "".join(parts) == plain(text)
    assert all(cell_len(part) <= columns for part in parts)


def test_a_line_of_a_log_is_folded_between_words() -> None:
    assert fold("grad 1.795  4,815 tokens/s  host 0.40 GiB", 39) == [
        *("grad 1.795  4,815 tokens/s  host 0.40 ", "GiB")
    ]
    assert fold("saved /a/long/path/without/spaces", 20) == [
        "saved /a/long/path/w",
        "ithout/spaces",
    ]


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        *(("step 3", ""), ("Traceback (most recent call last):", "bad"), ("ValueError: x", "bad")),
        *(("[WARN] x", "warning"), ("no_error_here", ""), ("0 errors", ""), ("ERROR: x", "bad")),
    ],
)
def test_lines_that_say_that_something_is_wrong(line: str, meaning: str) -> None:
    assert log_meaning(line) == meaning
