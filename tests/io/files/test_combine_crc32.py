from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from zerotools.io.files.combine_crc32 import combine_crc32


@given(st.binary(max_size=4096), st.binary(max_size=4096), st.integers(0, 40))
def test_the_crc_of_a_whole_follows_from_its_parts(first: bytes, second: bytes, times: int) -> None:
    second *= times
    combined = combine_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


def test_lengths_beyond_32_bits() -> None:
    megabyte_of_zeros = bytes(1 << 20)
    crc, length = zlib.crc32(megabyte_of_zeros), 1 << 20
    for _ in range(13):
        crc, length = combine_crc32(crc, crc, length), length * 2
    streamed = 0
    for _ in range(256):
        streamed = zlib.crc32(megabyte_of_zeros, streamed)
    whole, covered = streamed, 256 << 20
    while covered < length:
        whole, covered = combine_crc32(whole, whole, covered), covered * 2
    assert crc == whole
