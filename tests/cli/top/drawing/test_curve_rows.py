from __future__ import annotations

from tests.cli.top.made_looks import meaning_in, reported, text_of
from zerotools.cli.top.drawing import curve_rows
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.reading.report_reader import Reported


def test_the_loss_in_one_line_with_its_evaluation() -> None:
    line = curve_rows.loss_line(reported(), 80)
    assert text_of(line).startswith("loss █")
    assert "5.0000 → 0.6295   ● eval 0.6546" in text_of(line)
    assert width(line) <= 80
    assert text_of(curve_rows.eval_line(reported(), 80)).startswith("eval █")
    assert text_of(curve_rows.speed_line(reported().speed, 80)).endswith(" 15.3k tokens/s")
    assert width(curve_rows.loss_line(reported(), 20)) <= 20


def test_a_chart_has_its_rows_and_the_evaluations_are_points_in_it() -> None:
    for columns, rows in ((60, 6), (110, 18), (100, 40)):
        lines = curve_rows.loss_chart(reported(), columns, rows)
        assert len(lines) == rows
        assert all(width(line) <= columns for line in lines)
    text = "\n".join(map(text_of, lines))
    assert "loss 0.6295   least 0.6295 at step 1000   ● eval 0.6546 at step 1000" in text
    assert text.count("●") == 1 + 4
    assert meaning_in(lines[-3], "●") == "evals"
    assert text_of(lines[-1]).split() == ["step", "1", "1000"]


def test_the_speed_begins_at_nothing() -> None:
    lines = curve_rows.speed_chart(reported().speed, 60, 8)
    assert len(lines) == 8
    assert text_of(lines[-2]).split("│")[0].strip() == "0"


def test_a_chart_is_kept_while_the_curve_stays_the_same() -> None:
    found = reported()
    before = curve_rows.loss_chart(found, 60, 8)[1:]
    assert all(a is b for a, b in zip(before, curve_rows.loss_chart(found, 60, 8)[1:], strict=True))


def test_nothing_is_no_chart() -> None:
    assert curve_rows.loss_chart(Reported(), 60, 8) == []
    assert curve_rows.speed_chart(Reported().speed, 60, 8) == []
