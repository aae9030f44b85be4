r"""Parse regular expressions for tensor names into trees. Only a part of the syntax is supported.

Supported are letters, `.`, `[a-z]`, `\d`, `\w`, `\s`, groups, `|`, `*`, `+`, `?`, `{2,5}`, `^`,
`$`, `\A` and `\Z`, with the same meaning as in Python's `re`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from zerotools.core.errors import BadFile, Unsupported

_LONGEST = 2_000
_DEEPEST = 40
_MOST_TIMES = 1_000
_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(frozen=True, slots=True)
class Symbol:
    r"""One position of a pattern: a set of characters, or the start or end of the name.

    The start and the end consume no character. `classes` are the letters of `\d`, `\w`, ...
    """

    ranges: tuple[tuple[str, str], ...] = ()
    classes: str = ""
    negated: bool = False
    is_start: bool = False
    is_end: bool = False

    @property
    def size(self) -> int:
        """The cost of one call of `takes`, in comparisons."""
        return 1 + len(self.ranges) + len(self.classes)

    def takes(self, character: str) -> bool:
        """Return whether this position matches `character`."""
        if self.is_start or self.is_end:
            return False
        found = any(low <= character <= high for low, high in self.ranges)
        return (found or any(_is(each, character) for each in self.classes)) != self.negated


@dataclass(frozen=True, slots=True)
class PatternPart:
    """A node of the tree, one of three kinds.

    A node has a `symbol`; or a part `repeated` from `least` to `most` times (None: no limit); or
    `parts`, in sequence or, with `is_choice`, as alternatives.
    """

    symbol: Symbol | None = None
    parts: tuple[PatternPart, ...] = ()
    is_choice: bool = False
    repeated: PatternPart | None = None
    least: int = 1
    most: int | None = 1


START, END = Symbol(is_start=True), Symbol(is_end=True)
_ANY = Symbol((("\n", "\n"),), negated=True)


def exact_text(pattern: str) -> str | None:
    r"""Return the only name that a pattern such as `^a\.b$` matches; None for other patterns."""
    body = pattern.removeprefix("^")
    if not body.endswith("$"):
        return None
    found, at, end = [], 0, len(body) - 1
    while at < end:
        character = body[at]
        if character == "\\" and at + 1 < end and not _has_meaning(body[at + 1]):
            at += 1
            character = body[at]
        elif character in _SPECIAL:
            return None
        found.append(character)
        at += 1
    return "".join(found)


def parse_pattern(pattern: str, path: object) -> PatternPart:
    """Return the tree of `pattern`, which is in the file at `path`.

    Raises:
        BadFile: it is not a regular expression, or is too long for a pattern of tensor names.
        Unsupported: it uses syntax that is not supported.
    """
    if len(pattern) > _LONGEST:
        raise BadFile(
            f"{path}: its pattern {pattern!r:.60} has {len(pattern)} characters, and zerotools "
            f"takes {_LONGEST}; no program writes such patterns"
        )
    return _Parser(pattern, path).parse()


def _has_meaning(character: str) -> bool:
    return character.isalnum()


def _is(kind: str, character: str) -> bool:
    lower = kind.lower()
    if lower == "d":
        found = character.isdecimal()
    elif lower == "s":
        found = character.isspace()
    else:
        found = character.isalnum() or character == "_"
    return found != kind.isupper()


class _Parser:
    def __init__(self, pattern: str, path: object) -> None:
        self._text = pattern
        self._path = path
        self._at = 0
        self._depth = 0

    def parse(self) -> PatternPart:
        found = self._choice()
        if self._at < len(self._text):
            self._bad("has a ) too many")
        return found

    def _choice(self) -> PatternPart:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        return found[0] if len(found) == 1 else PatternPart(parts=tuple(found), is_choice=True)

    def _sequence(self) -> PatternPart:
        found = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            found.append(self._times(self._one()))
        return found[0] if len(found) == 1 else PatternPart(parts=tuple(found))

    def _one(self) -> PatternPart:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return PatternPart(self._class())
        if character in "*+?":
            self._bad(f"has a {character} with nothing before it")
        if character == "\\":
            return PatternPart(self._escaped(in_class=False))
        marks = {".": _ANY, "^": START, "$": END}
        return PatternPart(marks.get(character) or Symbol(((character, character),)))

    def _group(self) -> PatternPart:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._bad(f"has more than {_DEEPEST} groups in one another")
        if self._take("?"):
            if self._take("P<"):
                end = self._text.find(">", self._at)
                if end < 0 or not self._text[self._at : end].isidentifier():
                    self._bad("has a group without a name")
                self._at = end + 1
            elif not self._take(":"):
                self._unknown(f"(?{self._text[self._at : self._at + 1]}")
        found = self._choice()
        if not self._take(")"):
            self._bad("has a ( that is not closed")
        self._depth -= 1
        return found

    def _times(self, part: PatternPart) -> PatternPart:
        least, most = self._count()
        if (least, most) == (-1, None):
            return part
        self._take("?")  # fewest first: the same names match
        if self._take("+"):
            self._unknown("a + behind a repetition")
        if self._text[self._at : self._at + 1] in ("*", "?") or self._count() != (-1, None):
            self._bad("repeats a repetition")
        return PatternPart(repeated=part, least=least, most=most)

    def _count(self) -> tuple[int, int | None]:
        """Return the least and most repetitions of the preceding part; (-1, None) without a
        quantifier."""
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return least, most
        if self._text[self._at : self._at + 1] != "{":
            return -1, None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if not (low or high) or not all(not n or _is_number(n) for n in (low, high)):
            return -1, None  # `{` stands for itself
        self._at = end + 1
        least = int(low or 0)
        last = least if not comma else int(high) if high else None
        if max(least, last or 0) > _MOST_TIMES or (last is not None and last < least):
            self._bad(f"repeats something {{{low}{comma}{high}}} times")
        return least, last

    def _class(self) -> Symbol:
        negated = self._take("^")
        ranges, classes, begin = [], "", self._at
        while not (self._text[self._at : self._at + 1] == "]" and self._at > begin):
            low = self._member()
            if low.classes:
                classes += low.classes
                continue
            first = last = low.ranges[0][0]
            if self._text[self._at : self._at + 1] == "-" and self._text[
                self._at + 1 : self._at + 2
            ] not in ("]", ""):
                self._at += 1
                high = self._member()
                if high.classes or high.ranges[0][0] < first:
                    self._bad("has a range without an end")
                last = high.ranges[0][0]
            ranges.append((first, last))
        self._at += 1
        return Symbol(tuple(ranges), classes, negated)

    def _member(self) -> Symbol:
        if self._at >= len(self._text):
            self._bad("has a [ that is not closed")
        character = self._next()
        if character == "\\":
            return self._escaped(in_class=True)
        return Symbol(((character, character),))

    def _escaped(self, *, in_class: bool) -> Symbol:
        if self._at >= len(self._text):
            self._bad("ends in a \\")
        character = self._next()
        if character in "dDwWsS":
            return Symbol(classes=character)
        if character in "AZ" and not in_class:
            return START if character == "A" else END
        if character in _LETTERS:
            return Symbol(((_LETTERS[character], _LETTERS[character]),))
        if _has_meaning(character):
            self._unknown(f"\\{character}")
        return Symbol(((character, character),))

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) if found else 0
        return found

    def _bad(self, why: str) -> NoReturn:
        raise BadFile(
            f"{self._path}: its pattern {self._text!r:.60} {why}: it is not a regular expression"
        )

    def _unknown(self, what: str) -> NoReturn:
        raise Unsupported(
            f"{self._path}: its pattern {self._text!r:.60} has {what}, which zerotools does not "
            "follow; it takes letters, . [a-z] \\d \\w \\s ( ) | * + ? {2,5} ^ and $"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6
