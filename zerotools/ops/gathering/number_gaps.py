"""Files that are missing by the numbers in the names of others.

    zero_pp_rank_0_mp_rank_00_optim_states.pt
    zero_pp_rank_1_mp_rank_00_optim_states.pt       2 would be missing
    zero_pp_rank_3_mp_rank_00_optim_states.pt

It is a hint and not a proof: a layer without parameters has no file, and names alone do not show
that the last rank is missing. Records in the files are checked after the fetch.
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
    """The name of a file as the texts between its numbers, and the numbers as they are written.
    Those in the names of directories are text."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]


def numbered(name: str) -> Numbered:
    """Return the numbers in the name of a file."""
    directory, slash, base = name.rpartition("/")
    first, *rest = _NUMBER.split(base)
    return Numbered((directory + slash + first, *rest), tuple(_NUMBER.findall(base)))


def gaps(names: Iterable[str]) -> Iterator[str]:
    """Yield names that would complete the numbers of the others, where most of them are there."""
    families: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        texts, numbers = numbered(name)
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
    """Return the expected numbers: from 0, or 1 if that is the first, to the last."""
    values = {int(each) for each in there}
    if len(there) < len(values) or len(there) == 1:
        return sorted(there)
    first = 1 if min(values) == 1 else 0
    if max(values) - first >= _MOST:
        return sorted(there)
    width = min(map(len, there))
    return [f"{value:0{width}d}" for value in range(first, max(values) + 1)]


def alike(name: str, names: Iterable[str]) -> list[str]:
    """Return the other `names` that differ from `name` only in their numbers."""
    texts = numbered(name).texts
    return [each for each in names if each != name and numbered(each).texts == texts]


def varying(name: str, others: Iterable[str]) -> list[int] | None:
    """Return the numbers of `others`, as `alike` returned them, if `name` differs from all of them
    in one and the same position; None: in several."""
    rows = [numbered(each).numbers for each in others]
    own = numbered(name).numbers
    places = [n for n, number in enumerate(own) if any(row[n] != number for row in rows)]
    return sorted(int(row[places[0]]) for row in rows) if len(places) == 1 else None
