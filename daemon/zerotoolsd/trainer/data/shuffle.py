"""Shuffles numbers without a table: computes element i of a seeded permutation of range(n).

A four-round Feistel network (Luby and Rackoff, 1988) permutes the numbers below 2**b, where b is
the smallest even number with 2**b >= n. A result that is not below n is permuted again until it is
(cycle walking; fewer than four times on average). The result depends only on `(seed, epoch, n)`. It
is the same on every rank, machine and Python.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4
_MOST_KEPT = 1 << 16
"""Number of cached values per round, about 8 MB.

A permutation of 4 billion elements has this number of values per round.
"""


class Shuffle:
    """A permutation of range(`length`) that depends only on `seed` and `epoch`."""

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        self.length = length
        self._half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        keys = [f"{seed}/{epoch}/{number}/".encode() for number in range(_ROUNDS)]
        self._rounds = [(key, dict[int, int]()) for key in keys]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.length:
            raise IndexError(position)
        value = self._permute(position)
        while value >= self.length:
            value = self._permute(value)
        return value

    def _permute(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for key, kept in self._rounds:
            mixed = kept.get(right)
            if mixed is None:
                mixed = self._mixed(key, right)
                if len(kept) < _MOST_KEPT:
                    kept[right] = mixed
            left, right = right, left ^ mixed
        return left << self._half_bits | right

    def _mixed(self, key: bytes, half: int) -> int:
        """Return the output of one Feistel round for `half`, one half of the bits of a value."""
        digest = hashlib.blake2b(half.to_bytes(8, "little"), key=key, digest_size=8).digest()
        return int.from_bytes(digest, "little") & self._mask
