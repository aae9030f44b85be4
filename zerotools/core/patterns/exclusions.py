"""Patterns of `--exclude` that match some tensors of a model and none of the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator


def exclusions(unwanted: Collection[str], needed: Collection[str]) -> list[str]:
    """Return the fewest patterns found that match all names `unwanted` and no name `needed`.

    A pattern with a star stands for two names at least.
    """
    kept = {pattern for name in needed for pattern in _patterns(name)}
    matched: dict[str, set[str]] = {}
    for name in unwanted:
        for pattern in _patterns(name):
            if pattern not in kept:
                matched.setdefault(pattern, set()).add(name)
    found: list[str] = []
    left = set(unwanted)
    while left:
        best = max(matched, key=lambda each: (len(matched[each]), len(each)), default=None)
        if best is None or len(matched[best]) < 2:
            return [*found, *(_literal(name) for name in unwanted if name in left)]
        found.append(best)
        left -= matched.pop(best)
        matched = {each: names & left for each, names in matched.items() if names & left}
    return found


def _patterns(name: str) -> Iterator[str]:
    """Yield the patterns of the first words of a name, and of the last ones."""
    words = _literal(name).split(".")
    for count in range(1, len(words)):
        yield ".".join([*words[:count], "*"])
        yield ".".join(["*", *words[count:]])


def _literal(name: str) -> str:
    """Return the pattern of one name."""
    return re.sub(r"([*?[])", r"[\1]", name)
