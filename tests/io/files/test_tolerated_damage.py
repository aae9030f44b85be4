from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    lose_name,
    lose_unnamed,
    tolerate,
    tolerating,
)


def test_damage_is_an_error_where_nobody_tolerates_it() -> None:
    error = BadFile("a is damaged")
    with pytest.raises(BadFile) as raised:
        tolerate(Path("a"), error)
    assert raised.value is error
    lose_name(Path("a"), "w")
    assert not is_tolerated()


def test_the_first_fault_of_a_file_is_kept() -> None:
    with tolerating() as damage:
        assert is_tolerated()
        tolerate(Path("a"), BadFile("first"))
        tolerate(Path("a"), BadFile("second"))
        lose_name(Path("b"), "w")
        lose_unnamed(Path("c"))
    assert damage.faults == {Path("a").absolute(): "first"}
    assert damage.names == {"w": Path("b").absolute()}
    assert [*damage.unnamed] == [Path("c").absolute()]
    assert not is_tolerated()
