from __future__ import annotations

import pytest

from zerotools.core.counts_and_sizes import bytes_of, count_text


def test_one_is_not_many() -> None:
    assert [count_text(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert count_text(2, "copy", "copies") == "2 copies"


@pytest.mark.parametrize(
    ("text", "count"),
    [(7, 7), ("7", 7), ("5GB", 5 * 10**9), ("1 gib", 2**30), ("1.5KiB", 1536), (" 2MB ", 2000000)],
)
def test_units_are_those_of_the_field(text: int | str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "GB", "5 apples", "-5", "0", "0.1", "1e9", "5GB5", "9" * 19])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is "):
        bytes_of(text)
