from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.cli.top.drawing import short_numbers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((None, "-"), (-5, "0s"), (14.4, "14s"), (59.6, "1m00s"), (200, "3m20s")),
        *((7500, "2h05m"), (356400, "4d03h"), (1e12, ">999d")),
    ],
)
def test_brief(seconds: float | None, shown: str) -> None:
    assert short_numbers.brief(seconds) == shown


@given(st.floats(0, 1e15))
def test_figures_are_short(value: float) -> None:
    assert len(short_numbers.brief(value)) <= 6
    assert len(short_numbers.size(value)) <= 5
    assert len(short_numbers.thousands(value)) <= 5


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0 s ago"), (59, "59 s ago"), (240, "4 min ago"), (7300, "2 h ago"), (2e5, "2 d ago")],
)
def test_ago(seconds: float, shown: str) -> None:
    assert short_numbers.ago(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0B"),
        (980, "980B"),
        (1e9, "954M"),
        (1.2 * GIB, "1.2G"),
        (812 * GIB, "812G"),
    ],
)
def test_size(count: float | None, shown: str) -> None:
    assert short_numbers.size(count) == shown


def test_numbers() -> None:
    assert short_numbers.used_of(61.2 * GIB, 80 * GIB) == "61.2/80G"
    assert short_numbers.used_of(None, None) == "-/-G"
    assert [short_numbers.thousands(n) for n in (980, 15300, 1.2e6, 0)] == [
        "980",
        "15.3k",
        "1.2M",
        "0",
    ]
    assert short_numbers.unit(None, "W") == "-"
    assert short_numbers.unit(402.4, "W") == "402W"
    assert short_numbers.in_ranges([5, 0, 1, 2, 3]) == "0-3,5"
    assert short_numbers.in_ranges([]) == ""
