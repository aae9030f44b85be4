from __future__ import annotations

import numpy as np
import pytest

from zerotools.io.numeric.equal_bytes import are_equal


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 1001])
def test_one_byte_anywhere_makes_a_difference(length: int) -> None:
    ours = bytes(index % 251 for index in range(length))
    theirs = bytearray(ours)
    odd = memoryview(bytes(1) + ours)[1:]  # begins where no word does
    assert are_equal(ours, memoryview(theirs))
    assert are_equal(odd, np.frombuffer(ours, np.uint8))
    assert not are_equal(ours, ours + b"\0")
    for at in range(length):
        theirs[at] ^= 0x80
        assert not are_equal(ours, memoryview(theirs))
        theirs[at] ^= 0x80
