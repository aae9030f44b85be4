from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    raise_or_record,
    record_lost_tensor,
    record_lost_unnamed,
    tolerating_damage,
)


def test_damage_is_an_error_where_nobody_tolerates_it() -> None:
    error = BadFile("a is damaged")
    with pytest.raises(BadFile) as raised:
        raise_or_record(Path("a"), error)
    assert raised.value is error
    record_lost_tensor(Path("a"), "w")
    assert not is_tolerated()


def test_the_first_fault_of_a_file_is_kept() -> None:
    with tolerating_damage() as damage:
        assert is_tolerated()
        raise_or_record(Path("a"), BadFile("first"))
        raise_or_record(Path("a"), BadFile("second"))
        record_lost_tensor(Path("b"), "w")
        record_lost_unnamed(Path("c"))
    assert damage.faults == {Path("a").absolute(): "first"}
    assert damage.names == {"w": Path("b").absolute()}
    assert [*damage.unnamed] == [Path("c").absolute()]
    assert not is_tolerated()
