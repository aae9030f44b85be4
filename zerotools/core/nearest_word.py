"""Find the known word that is most similar to a misspelled word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200


def nearest_of(word: str, known: Iterable[str]) -> str:
    """Return the most similar word of `known`, ignoring case. Return an empty string if `known` is
    empty.

    There is no lower limit for the similarity.
    """
    by_small = {each.lower(): each for each in known}
    found = get_close_matches(word[:_LONGEST].lower(), list(by_small), n=1, cutoff=0.0)
    return by_small[found[0]] if found else ""
