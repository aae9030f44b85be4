from __future__ import annotations

import pytest

from zerotools.io.files.directory_entries import stays_below_root


@pytest.mark.parametrize("name", ["a", "dcp/__0_0.distcp", ".metadata", "a..b/c"])
def test_names_below_the_root(name: str) -> None:
    assert stays_below_root(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0b", "../../etc/passwd"]
)
def test_names_that_leave_it_or_are_spelled_oddly(name: str) -> None:
    assert not stays_below_root(name)
