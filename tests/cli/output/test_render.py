from __future__ import annotations

import pytest

from zerotools.cli.output import render


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (61.2 * 2**30, "61.2 GiB"),
        (3 * 2**60, "3072.0 PiB"),
        (None, "-"),
    ],
)
def test_size(count: float | None, shown: str) -> None:
    assert render.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (4 * 86400 + 3 * 3600, "4 d 03 h"),
        (-3, "0 s"),
        (None, "-"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert render.duration(seconds) == shown


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("数据", 4), ("e\u0301", 1), ("ก็", 1), ("नमस्ते", 4), ("a\u20dd", 1), ("\u200d", 0)],
)
def test_width_is_that_of_a_terminal(text: str, columns: int) -> None:
    assert render.width(text) == columns


def test_what_breaks_lines_or_shows_nothing_is_written_out() -> None:
    assert render.clean("a\u2028b\u200bc\ufeffd\u061ce") == "a\\u2028b\\u200bc\\ufeffd\\u061ce"
    assert render.clean("👩\u200d👧 שלום") == "👩\u200d👧 שלום"


def test_clean_shows_what_would_move_the_cursor() -> None:
    assert render.clean("a\x1b[2Jb\nc\u202ed\ud800") == "a\\x1b[2Jb\\nc\\u202ed\\ud800"


def test_table_is_as_wide_as_its_content() -> None:
    lines = render.table(["id", "name"], [["7", "a\tb"], ["12", "宽"]], right=["id"])
    assert lines == ["id  name", " 7  a\\tb", "12  宽"]


def test_table_shortens_only_the_last_column() -> None:
    lines = render.table(["id", "why"], [["1", "waits for a GPU that is held"]], columns=20)
    assert lines == ["id  why", "1   waits for a GPU…"]


def test_fields_are_aligned_and_empty_ones_left_out() -> None:
    assert render.fields([("state", "queued"), ("why", ""), ("id", "3")]) == [
        "state  queued",
        "id     3",
    ]


def test_long_fields_continue_below_themselves_between_words() -> None:
    pairs = [("why", "needs 4 GPUs: 1 of 4 is free, and job 2 has the others"), ("id", "3")]
    assert render.fields(pairs, indent=2, columns=40) == [
        "  why  needs 4 GPUs: 1 of 4 is free, and",
        "       job 2 has the others",
        "  id   3",
    ]
    assert render.fields(pairs, indent=2, columns=30) == render.fields(pairs, indent=2)


def test_a_narrow_terminal_gets_a_small_indent() -> None:
    pairs = [("a long name", "words that continue on a second line")]
    assert render.fields(pairs, columns=40) == [
        "a long name  words that continue on a",
        "    second line",
    ]


def test_a_path_is_not_cut() -> None:
    path = f"/data/{'step' * 12}/x-y"
    lines = ["saved", f"       {path}", "       (bf16)"]
    assert render.folded(f"saved  {path} (bf16)", 45, 7) == lines
    assert render.folded("saved  here", None, 7) == ["saved  here"]
    fits = path[:40]
    lines = ["saved step 9 in", f"    {fits}", "    (bf16)"]
    assert render.folded(f"saved step 9 in {fits} (bf16)", 45, 7) == lines


def test_a_path_in_a_remark_is_not_cut() -> None:
    path = "/data/of-a-run/" + "step-" * 6
    rows = [("1", f"cannot read {path}")]
    assert render.table_and_remarks(("id", "why"), rows, columns=40) == [
        "id",
        "1",
        "    cannot read",
        f"    {path}",
    ]


def test_consecutive_numbers_are_joined() -> None:
    assert render.spans([0, 1, 2, 3, 7, 9, 10]) == "0-3, 7, 9-10"
    assert (render.spans([4]), render.spans([])) == ("4", "-")
