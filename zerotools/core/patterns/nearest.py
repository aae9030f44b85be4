"""The word that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200


def nearest_of(word: str, known: Iterable[str]) -> str:
    """The most similar of `known`, in capitals or not, however little that is; empty where there is
    none."""
    by_small = {each.lower(): each for each in known}
    found = get_close_matches(word[:_LONGEST].lower(), list(by_small), n=1, cutoff=0.0)
    return by_small[found[0]] if found else ""
