"""Compare the numbers in file names, to find files that seem to be missing.

    zero_pp_rank_0_mp_rank_00_optim_states.pt
    zero_pp_rank_1_mp_rank_00_optim_states.pt       2 would be missing
    zero_pp_rank_3_mp_rank_00_optim_states.pt

A gap is a hint and not a proof: a layer without parameters has no file. And a missing last rank
leaves no gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import NamedTuple

_NUMBER = re.compile(r"\d{1,9}")
_MOST = 1 << 20


class Numbered(NamedTuple):
    """The name of a file, split into its numbers and the texts between them. Numbers in the names
    of directories count as text."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]


def numbers_in_name(name: str) -> Numbered:
    """Return the numbers in the name of a file."""
    directory, slash, base = name.rpartition("/")
    first, *rest = _NUMBER.split(base)
    return Numbered((directory + slash + first, *rest), tuple(_NUMBER.findall(base)))


def missing_in_series(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that are missing in a series of numbered files, if at least half of the
    series exists."""
    families: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        texts, numbers = numbers_in_name(name)
        if numbers:
            families.setdefault(texts, []).append(numbers)
    for texts, there in families.items():
        ranges = [_range({row[place] for row in there}) for place in range(len(texts) - 1)]
        if not len(there) < prod(map(len, ranges)) <= min(2 * len(there), _MOST):
            continue
        known = set(there)
        for numbers in product(*ranges):
            if numbers not in known:
                yield texts[0] + "".join(map("".join, zip(numbers, texts[1:], strict=True)))


def _range(there: set[str]) -> list[str]:
    """Return the expected numbers, up to the largest existing one. They begin at 1 if the smallest
    existing number is 1, else at 0."""
    values = {int(each) for each in there}
    if len(there) < len(values) or len(there) == 1:
        return sorted(there)
    first = 1 if min(values) == 1 else 0
    if max(values) - first >= _MOST:
        return sorted(there)
    width = min(map(len, there))
    return [f"{value:0{width}d}" for value in range(first, max(values) + 1)]


def names_alike(name: str, names: Iterable[str]) -> list[str]:
    """Return the other `names` that differ from `name` only in their numbers."""
    texts = numbers_in_name(name).texts
    return [each for each in names if each != name and numbers_in_name(each).texts == texts]


def varying_numbers(name: str, others: Iterable[str]) -> list[int] | None:
    """Return the numbers that `others` have in place of one number of `name`, sorted. Return None
    unless they differ from `name` in only this number. `others` is a result of `names_alike`."""
    rows = [numbers_in_name(each).numbers for each in others]
    own = numbers_in_name(name).numbers
    places = [n for n, number in enumerate(own) if any(row[n] != number for row in rows)]
    return sorted(int(row[places[0]]) for row in rows) if len(places) == 1 else None
