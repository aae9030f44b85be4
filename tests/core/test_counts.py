from __future__ import annotations

from zerotools.core.counts import counted


def test_one_is_not_many() -> None:
    assert [counted(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert counted(2, "copy", "copies") == "2 copies"
