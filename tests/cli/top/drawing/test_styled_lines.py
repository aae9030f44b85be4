from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from harness.fake_gpu_probe import fake_gpu
from tests.cli.top.made_looks import GIB, text_of
from zerotools.cli.top.drawing.styled_lines import (
    Line,
    cut,
    ends,
    filled,
    flowing,
    in_ascii,
    level,
    memory_bar,
    meter,
    padded,
    plain,
    ruled,
    shortened,
    side_by_side,
    strip,
    warmth,
    width,
)
from zerotools.cli.top.reading.gpu_holders import GpuShare
from zerotools.sensors.snapshot import Gpu

LINES = st.lists(st.tuples(st.text(max_size=12), st.just("")), max_size=6)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\x1b[2Jb\n", "a\\x1b[2Jb\\n"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("👩\u200d👩\u200d👧", "👩👩👧"),
        ("✔\ufe0f 👍\U0001f3fd", "✔ 👍"),
        ("z" + "\u0301" * 9, "z\u0301\u0301"),
        ("שלום", "שלום"),
        ("a\u2028b\u200bc", "a\\u2028b\\u200bc"),
        (7, "7"),
    ],
)
def test_what_others_write_is_on_one_line_and_of_a_known_width(written: object, shown: str) -> None:
    assert plain(written) == shown


@given(st.text(max_size=40), st.integers(0, 30))
def test_text_is_cut_and_filled_to_its_columns(text: str, columns: int) -> None:
    short = plain(text)
    assert cell_len(shortened(short, columns)) <= columns
    assert cell_len(filled(short, columns)) == columns
    assert cell_len(filled(short, columns, right=True)) == columns


@given(LINES, st.integers(0, 40))
def test_lines_are_cut_and_padded_to_their_columns(line: Line, columns: int) -> None:
    clean = [(plain(text), meaning) for text, meaning in line]
    assert width(cut(clean, columns)) <= columns
    assert width(padded(clean, columns)) == columns
    assert width(ends(clean, [("end", "")], max(8, columns))) == max(8, columns)


def test_half_of_a_wide_character_has_no_place() -> None:
    assert shortened("数据清洗", 6) == "数据…"
    assert filled("数据清洗", 6) == "数据… "


def test_a_title_has_a_line_to_the_edge() -> None:
    line = ruled([("job 3", "strong")], 30, [("running", "quiet")])
    assert text_of(line) == "── job 3 ─────────── running ─"
    assert text_of(ruled([("job 3", "")], 20, [("much longer than that", "")])).endswith("─" * 11)
    assert width(ruled([("a long title", "")], 9)) == 9


def test_blocks_stand_beside_each_other() -> None:
    lines = side_by_side([[("a", "")]], [[("b", "")], [("c", "")]], 4, 3)
    assert [text_of(line) for line in lines] == ["a    │ b", "     │ c", "     │ "]


def test_parts_flow_and_the_least_important_goes_first() -> None:
    parts: list[tuple[int, Line]] = [(0, [("aaaa", "")]), (9, [("bbbb", "")]), (1, [("cccc", "")])]
    assert [text_of(line) for line in flowing(parts, 11, 2)] == ["aaaa   bbbb", "cccc"]
    assert [text_of(line) for line in flowing(parts, 11, 1)] == ["aaaa   cccc"]
    assert [text_of(line) for line in flowing([(0, [("aaaaaa", "")])], 3, 1)] == ["aa…"]
    assert flowing([], 10, 2) == []


def test_marks_become_letters() -> None:
    assert in_ascii([("▇▓▚╌ ━╌ 61° ✓ ▸ ▁█ ⣿ …", "x")]) == [("#%x- =- 61C + > _# * ~", "x")]
    assert in_ascii([("größe 数据", "")]) == [("gr??e ????", "")]


@given(st.text(max_size=30))
def test_a_line_keeps_its_width(text: str) -> None:
    shown = plain(text)
    ((letters, _),) = in_ascii([(shown, "")])
    assert letters.isascii()
    assert len(letters) == sum(cell_len(each) for each in shown)


def test_the_bar_of_a_gpu_is_split_by_who_holds_its_memory() -> None:
    shares = (
        GpuShare("job 3", "job", 30 * GIB),
        GpuShare("nobody", "residue", 20 * GIB),
        GpuShare("ada", "stranger", 10 * GIB),
    )
    bar = memory_bar(fake_gpu(0, used_gib=60), shares, 16)
    assert bar == [("▇" * 6, "job"), ("▓" * 2, "stranger"), ("▚" * 4, "residue"), ("╌" * 4, "free")]


@pytest.mark.parametrize("shares", [(), (GpuShare("job 1", "job", 200 * GIB),) * 3])
@pytest.mark.parametrize("columns", [1, 8, 13, 40])
def test_a_bar_is_as_wide_as_it_is_asked(shares: tuple[GpuShare, ...], columns: int) -> None:
    assert width(memory_bar(fake_gpu(0), shares, columns)) == columns
    assert width(memory_bar(Gpu(index=0), shares, columns)) == columns


@given(st.floats(-2, 2) | st.none(), st.integers(1, 30))
def test_a_meter_is_as_wide_as_it_is_asked(share: float | None, columns: int) -> None:
    assert width(meter(share, columns)) == columns


def test_a_little_is_more_than_nothing() -> None:
    assert text_of(meter(0.001, 4)) == "━╌╌╌"
    assert text_of(meter(0.0, 4)) == "╌╌╌╌"
    assert meter(0.5, 0) == []
    assert level(0.99)[0] == "█"
    assert level(None)[0] == " "
    assert strip([None, 0.0, 10.0], 3, 10.0) == [(" ▁█", "strip")]
    assert strip(None, 3) == []


def test_what_should_be_low_is_warned_of() -> None:
    assert [warmth(n, 80, 88) for n in (None, 79, 80, 88)] == ["", "", "warning", "bad"]
