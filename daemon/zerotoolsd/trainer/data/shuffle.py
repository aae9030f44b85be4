"""A shuffle without a table: element i of a seeded permutation of range(n), in constant memory.

A four-round Feistel network permutes the smallest even-bit power of two that is at least `n`
(Luby and Rackoff, 1988); values that fall outside the range are sent through again until they
fall inside (cycle walking; fewer than four times on average). It is a pure function of
`(seed, epoch, n)`, the same on every rank, machine and Python.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


class Shuffle:
    """A permutation of range(`length`) that depends on `seed` and `epoch` only."""

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        self.length = length
        self._half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._keys = [f"{seed}/{epoch}/{number}/".encode() for number in range(_ROUNDS)]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.length:
            raise IndexError(position)
        value = self._permute(position)
        while value >= self.length:
            value = self._permute(value)
        return value

    def _permute(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for key in self._keys:
            digest = hashlib.blake2b(right.to_bytes(8, "little"), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & self._mask)
        return left << self._half_bits | right
