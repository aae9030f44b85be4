"""The values that may be hashed.

Hashing a tuple visits everything below it: a tuple nested a million deep overflows the C stack,
and one that holds itself twice at each of 60 levels takes forever. Integers near the modulus of
Python's hash can be chosen to collide.
"""

from __future__ import annotations

from typing import Any

from zerotools.core.errors import BadFile

_PLAIN = (str, float, bool, bytes, type(None))
_MAX_PARTS = 256
_LARGEST_INTEGER = 2**60


def check_key(key: Any) -> None:
    """Refuse a value that is not safe to hash as the key of a dict or member of a set."""
    kind = type(key)
    if kind is str:
        return
    if kind is int:
        if not -_LARGEST_INTEGER <= key <= _LARGEST_INTEGER:
            raise BadFile("a key is an integer of more than 60 bits")
    elif isinstance(key, tuple | frozenset):
        _check_parts(key)


def _check_parts(key: tuple[Any, ...] | frozenset[Any]) -> None:
    waiting, seen = [key], 0
    while waiting:
        part = waiting.pop()
        seen += len(part)
        if seen > _MAX_PARTS:
            raise BadFile(f"a key has more than {_MAX_PARTS} parts")
        for value in part:
            if isinstance(value, tuple | frozenset):
                waiting.append(value)
            else:
                check_key(value)
