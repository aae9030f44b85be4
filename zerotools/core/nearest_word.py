"""Find the known word that is most similar to a misspelled word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200


def nearest_of(word: str, known: Iterable[str]) -> str:
    """Return the word in `known` that is most similar to `word`, ignoring case; an empty string if
    `known` is empty.

    A word is returned even if it is not similar at all.
    """
    by_small = {each.lower(): each for each in known}
    found = get_close_matches(word[:_LONGEST].lower(), list(by_small), n=1, cutoff=0.0)
    return by_small[found[0]] if found else ""
