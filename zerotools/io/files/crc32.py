"""CRC-32 as `zlib.crc32` computes it, by zlib-ng.

zlib-ng uses vector instructions, and is up to twenty times as fast as zlib
(benchmarks/results/verify.md). zlib computes it where zlib-ng is not installed: on processors
without wheels of zlib-ng, and in the Python of a job.
"""

from __future__ import annotations

import zlib
from functools import cache

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]


# CRC-32 of a range from the CRC-32s of its parts.
#
# The CRC of A followed by B is the CRC of A, advanced over len(B) zero bytes, xor the CRC of B.
# Advancing is linear over GF(2): a 32x32 bit matrix, squared once per bit of the length (the method
# of zlib's `crc32_combine`; polynomial 0xEDB88320, reflected).

_POLYNOMIAL = 0xEDB88320
_FULL = 0xFFFFFFFF

# For at most this many zero bytes, zlib itself is faster than the multiplication of matrices.
_FEW_POWER = 14
_FEW = 2**_FEW_POWER
_ZEROS = memoryview(bytes(_FEW))


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
        if not vector:
            break
    return total


@cache
def _advance(power: int) -> tuple[int, ...]:
    """Return the matrix that advances a CRC over 2**power zero bytes."""
    if power:
        half = _advance(power - 1)
        return tuple(_apply(half, column) for column in half)
    matrix = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    for _ in range(3):
        matrix = tuple(_apply(matrix, column) for column in matrix)
    return matrix


def of_zeros(length: int) -> int:
    """Return the CRC-32 of `length` zero bytes."""
    return combine_crc32(_FULL, _FULL, length)


def combine_crc32(first: int, second: int, second_length: int) -> int:
    """Return the CRC-32 of two parts joined, from the CRC-32 of each and the length of the second
    part in bytes.
    """
    low = second_length % _FEW
    # zlib inverts the CRC before and after its computation. Inverting it again leaves the advance.
    first = zlib.crc32(_ZEROS[:low], first ^ _FULL) ^ _FULL
    power, second_length = _FEW_POWER, second_length // _FEW
    while second_length:
        if second_length & 1:
            first = _apply(_advance(power), first)
        second_length >>= 1
        power += 1
    return first ^ second
