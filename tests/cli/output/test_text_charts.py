from __future__ import annotations

from collections.abc import Sequence

import pytest

from zerotools.cli.output.text_charts import (
    LETTERS,
    Series,
    chart_grid,
    means_over_time,
    sparkline,
)


def form(value: float) -> str:
    return f"{value:.0f}"


def test_points_that_are_not_joined_have_no_line_between_them() -> None:
    ends = {0: 0.0, 100: 10.0}
    for is_joined, dots in ((True, 20), (False, 2)):
        series = [Series(ends, is_joined=is_joined)]
        found = chart_grid(series, form, columns=24, braille=False, rows=5)
        assert found is not None
        assert sum(text != " " for row in found.cells for text, _ in row) == dots
    assert chart_grid([Series({})], form, columns=24, braille=False) is None


def test_a_cell_says_which_curve_it_is_of() -> None:
    series = [Series({0: 0.0, 9: 0.0}), Series({0: 1.0, 9: 1.0}, "o")]
    found = chart_grid(series, form, columns=24, braille=False, rows=3)
    assert found is not None
    assert {number for _, number in found.cells[0]} == {1}
    assert {number for _, number in found.cells[2]} == {0}
    assert {number for _, number in found.cells[1]} == {None}
    assert found.labels == [" 1", "  ", " 0"]
    assert found.steps == "step 0             9"


def test_round_values_and_steps_are_named_between_the_ends_of_the_axes() -> None:
    series = [Series({1: 1.78, 1087: 7.67})]
    found = chart_grid(series, "{:.4f}".format, columns=110, braille=True, rows=13)
    assert found is not None
    named = {row: label.strip() for row, label in enumerate(found.labels) if label.strip()}
    assert named == {0: "7.6700", 3: "6.0000", 7: "4.0000", 12: "1.7800"}
    assert found.steps.split() == ["step", "1", "250", "500", "750", "1000", "1087"]
    at = found.steps.index("500") + 1
    assert abs(at - 499 / 1086 * (len(found.steps) - 1)) <= 1, "below its column"


@pytest.mark.parametrize(
    "ends",
    [(0.0, 0.0), (5e-324, 1e-323), (-1.7e308, 1.7e308), (1e308, 1.7e308), (1e16, 1e16 + 2)],
)
def test_axes_of_any_values(ends: tuple[float, float]) -> None:
    series = [Series(dict(enumerate(ends)))]
    found = chart_grid(series, "{:.1e}".format, columns=80, braille=True, rows=20)
    assert found is not None
    assert found.labels[0].strip() == f"{max(ends):.1e}"
    assert len({len(label) for label in found.labels}) == 1
    assert found.steps.startswith("step 0 ")
    assert found.steps.endswith(" 1")


def test_of_points_that_share_a_column_all_that_lies_between_them_is_drawn() -> None:
    dense = {step: float(step % 2) for step in range(10_000)}
    series = [Series(dense)]
    grid = chart_grid(series, form, columns=30, braille=True, rows=3)
    assert grid is not None
    assert all(row.split("│")[1].strip("⣿") == "" for row in grid.lines(series, "│"))


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([1.0], 0, ""),
        ([0.0, 1.0], 9, "▁█"),
        ([0, 0, 1, 1], 2, "▁█"),
        ([0, None, 1], 3, "▁ █"),
        ([None, None], 2, "  "),
    ],
)
def test_a_sparkline(values: Sequence[float | None], width: int, drawn: str) -> None:
    assert sparkline(values, width) == drawn


def test_with_bounds_a_flat_curve_is_where_it_lies() -> None:
    assert sparkline([5, 5], 2, (0, 10)) == "▅▅"
    assert sparkline([-1, 11], 2, (0, 10), LETTERS) == "_#"


def test_cells_are_of_equal_time_and_a_daemon_that_rests_leaves_no_gap() -> None:
    assert means_over_time([0, 50, 51, 59], [1, 2, 4, None], 60, 6, 1) == [
        1,
        1,
        None,
        None,
        None,
        3,
    ]
    assert means_over_time([0, 10, 20], [1, None, 3], 30, 3, 10) == [1, 1, 3]
    assert means_over_time([1000], [5], 40, 4, 10) == [None, None, None, 5]
