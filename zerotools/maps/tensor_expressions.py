"""The parts of one tensor of a layout: `interleave(A, B, C; groups)`, of tensors of the Hub.

Tensors come first, then a semicolon and sizes. `{i}` in a name is an index, `{i+size}` an index
shifted by a size.

    concat(A, B, ...; dim)        concatenated along a dimension
    part(A; dim, begin, end)      the indices [begin, end) of a dimension
    every(A; dim, first, step)    every step-th index of a dimension
    stack(A; e)                   the tensors of all indices e, along a new first dimension
    item(A; number)               one index of the first dimension
    transpose(A; dim, dim)        two dimensions exchanged
    pairs(A; heads)               rows of each head: from halves to pairs (rope)
    halves(A; heads)              rows of each head: from pairs to halves (rope)
    interleave(A, B, ...; groups) rows of all, cut into so many groups: A0 B0 ... A1 B1 ...
    pad(A; multiple)              rows up to a multiple of this; those added repeat the last
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.patterns.nearest import nearest_of
from zerotools.maps.size_expressions import parsed

SIZES: Mapping[str, int] = {
    "concat": 1, "part": 3, "every": 3, "stack": 1, "item": 1, "transpose": 2, "pairs": 1,
    "halves": 1, "interleave": 1, "pad": 1,
}  # fmt: skip
"""Every word, and the number of its sizes."""
_JOINING = ("concat", "interleave")
_NAME = re.compile(r"[\w.{}+\-]+")
_DEEPEST = 64
_INDEX = re.compile(r"\{(\w+)(?:\+(\w+))?\}")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor of the Hub; its name may have indices."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Operation:
    """`word` of tensors, with sizes as text."""

    word: str
    tensors: tuple[TensorExpression, ...]
    sizes: tuple[str, ...]


TensorExpression = TensorName | Operation


def indices_of(pattern: str) -> tuple[str, ...]:
    """Return the indices in a name, in order."""
    return tuple(dict.fromkeys(found[1] for found in _INDEX.finditer(pattern)))


def shifts_of(pattern: str) -> tuple[tuple[str, str], ...]:
    """Return each index that is counted on from a size, and the size."""
    return tuple((found[1], found[2]) for found in _INDEX.finditer(pattern) if found[2])


def with_indices(pattern: str, indices: Mapping[str, int]) -> str:
    """Return the name that the pattern has at these indices (`MapSizes.at`)."""
    return _INDEX.sub(lambda found: str(indices[found[0][1:-1]]), pattern)


def names_in(expression: TensorExpression) -> Iterator[str]:
    """Yield the patterns of all tensors in it, in order."""
    if isinstance(expression, TensorName):
        yield expression.pattern
        return
    for each in expression.tensors:
        yield from names_in(each)


def sizes_in(expression: TensorExpression) -> Iterator[str]:
    """Yield all sizes in it."""
    if isinstance(expression, Operation):
        yield from expression.sizes
        for each in expression.tensors:
            yield from sizes_in(each)


def parse(text: str) -> TensorExpression:
    """Parse the expression into a tree.

    Raises:
        ValueError: it is not one; for an unknown word the nearest is named.
    """
    reader = _Reader(text)
    found = reader.expression()
    if reader.rest():
        raise ValueError(f"{reader.rest()!r} after {text[: reader.at]!r} is not expected")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def _next(self) -> str:
        rest = self.text[self.at :]
        self.at += len(rest) - len(rest.lstrip())
        return self.text[self.at : self.at + 1]

    def expression(self) -> TensorExpression:
        if self.text.count("(") > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} words")
        self._next()
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise ValueError(f"a tensor or a function is missing at {self.rest()!r}")
        self.at = found.end()
        if self._next() != "(":
            return TensorName(found[0])
        self.at += 1
        return self._operation(found[0])

    def _operation(self, word: str) -> Operation:
        if word not in SIZES:
            known = nearest_of(word, SIZES)
            raise ValueError(f"{word}(...) does not exist; the nearest is {known}")
        tensors = [self.expression()]
        while self._next() == ",":
            self.at += 1
            tensors.append(self.expression())
        if self._next() != ";":
            raise ValueError(f"{word}(...) lacks a semicolon before its sizes")
        sizes = self._sizes(word)
        if len(tensors) > 1 and word not in _JOINING:
            raise ValueError(f"{word}(...) takes 1 tensor, but has {len(tensors)}")
        if len(sizes) != SIZES[word]:
            raise ValueError(f"{word}(...) takes {SIZES[word]} sizes, but has {len(sizes)}")
        return Operation(word, tuple(tensors), sizes)

    def _sizes(self, word: str) -> tuple[str, ...]:
        depth, begin = 0, self.at + 1
        sizes: list[str] = []
        for at in range(begin, len(self.text)):
            letter = self.text[at]
            depth += (letter in "([") - (letter in ")]")
            if depth < 0 or (letter == "," and not depth):
                sizes.append(self.text[begin:at].strip())
                begin = at + 1
            if depth < 0:
                self.at = at + 1
                for size in sizes:
                    parsed(size)
                return tuple(sizes)
        raise ValueError(f"{word}(...) lacks its closing bracket")
