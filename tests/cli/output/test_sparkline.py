from __future__ import annotations

from collections.abc import Sequence

import pytest

from zerotools.cli.output.sparkline import LETTERS, sparkline, spread


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
    assert spread([0, 50, 51, 59], [1, 2, 4, None], 60, 6, 1) == [1, 1, None, None, None, 3]
    assert spread([0, 10, 20], [1, None, 3], 30, 3, 10) == [1, 1, 3]
    assert spread([1000], [5], 40, 4, 10) == [None, None, None, 5]
