"""Lists of processors, as the kernel writes them."""

from __future__ import annotations

import pytest

from zerotools.sensors.cpu_lists import cpu_list, numbers_in


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((7,), "7"),
        ((3, 1, 2), "1-3"),
        ((0, 2, 4), "0,2,4"),
        ((*range(16), *range(32, 48)), "0-15,32-47"),
        (range(1024), "0-1023"),
    ],
)
def test_a_list_is_read_as_it_is_written(numbers: tuple[int, ...], text: str) -> None:
    assert cpu_list(numbers) == text
    assert numbers_in(text) == frozenset(numbers)


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "0-999999999999", "1-2-3", "0x2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\d|a"):
        numbers_in(text)
