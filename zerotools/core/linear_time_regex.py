r"""Match regular expressions against tensor names, in time linear in the length of the names.

Checkpoints contain patterns (`universal_checkpoint_info`, an adapter's `rank_pattern`). `re`
backtracks: with `(a+)+$` it needs years to reject thirty letters. So this module reads a name once,
character by character, for all patterns together, and keeps the set of pattern positions that may
come next (Glushkov's automaton). In `a(b|c)*d` the positions are a, b, c and d; after `ab` any of
b, c and d may follow. A name costs one step per character, whatever the number and the content of
the patterns.

    NamePatterns([r".*\.(q|k)_proj\.weight", "^lm_head$"], path).matching("x.q_proj.weight")

The result says only whether `re.match` would match. So `*` and `*?` mean the same, and group names
are ignored. Patterns with lookahead, lookbehind or flags cannot be matched in this way and are
rejected; neither DeepSpeed nor Megatron nor PEFT writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NoReturn

from zerotools.core.errors import BadFile, Unsupported

_MOST_WORK = 20_000_000
_PLACE, _FOLLOWER = 200, 40  # costs of making and keeping each; one step costs 1
_MOST_PLACES_KEPT = 300_000


class NamePatterns:
    """Compiled patterns of tensor names. `path` is the file that has them, for messages.

    Raises:
        BadFile: a pattern is not a regular expression, or matching would take too long.
        Unsupported: a pattern uses syntax that zerotools does not support.
    """

    def __init__(self, patterns: Sequence[str], path: object) -> None:
        self._patterns = tuple(dict.fromkeys(patterns))
        self._exact: dict[str, list[int]] = {}
        self._automaton = _Automaton(path)
        for number, pattern in enumerate(self._patterns):
            text = exact_text(pattern)
            if text is not None:  # what AutoTP writes: one for each parameter
                self._exact.setdefault(text, []).append(number)
            else:
                self._automaton.add(number, parse_pattern(pattern, path))

    def matching(self, name: str) -> list[str]:
        """Return the patterns that match at the start of `name`, in their original order.

        Raises:
            BadFile: matching would take too long.
        """
        found = self._automaton.run(name)
        exact = self._exact.get(name) or self._exact.get(name.removesuffix("\n")) or ()
        return [self._patterns[number] for number in sorted({*found, *exact})]


_Set = frozenset[int]
_NOTHING: _Set = frozenset()


@dataclass(frozen=True, slots=True)
class _Places:
    """The positions of the automaton at which a match of a part of a pattern may begin and end."""

    may_be_empty: bool
    first: _Set = _NOTHING
    last: _Set = _NOTHING


@dataclass(slots=True)
class _Step:
    """A state of the automaton: the set of positions that may come next.

    For each character, it stores the next state and the numbers of the patterns that have matched
    by then. It also stores the patterns that match if the name ends here. Each state is created
    when it is first needed.
    """

    next: _Set
    on: dict[str, tuple[_Step, _Set]] = field(default_factory=dict)
    at_end: _Set | None = None


class _Automaton:
    """An automaton that matches all patterns at once, except patterns of plain text."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._work = 0
        self._symbols: list[Symbol] = []
        self._follow: list[set[int]] = []
        self._pattern_at: list[int] = []
        self._first: set[int] = set()
        self._last: set[int] = set()
        self._always: set[int] = set()
        self._begin: tuple[_Step, _Set] | None = None
        self._steps: dict[_Set, _Step] = {}
        self._kept = 0

    def add(self, number: int, part: PatternPart) -> None:
        """Add the pattern `part` under a number. All patterns are added before the first `run`."""
        places = self._build(part)
        self._pattern_at += [number] * (len(self._symbols) - len(self._pattern_at))
        self._first |= places.first
        self._last |= places.last
        if places.may_be_empty:
            self._always.add(number)

    def _build(self, part: PatternPart) -> _Places:
        self._spend(1)
        if part.symbol is not None:
            return self._place(part.symbol)
        if part.repeated is not None:
            return self._repeated(part.repeated, part.least, part.most)
        if part.is_choice:
            found = [self._build(each) for each in part.parts]
            return _Places(
                any(each.may_be_empty for each in found),
                self._union(each.first for each in found),
                self._union(each.last for each in found),
            )
        whole = _Places(may_be_empty=True)
        for each in part.parts:
            whole = self._joined(whole, self._build(each))
        return whole

    def _place(self, symbol: Symbol) -> _Places:
        self._spend(_PLACE)
        place = frozenset([len(self._symbols)])
        self._symbols.append(symbol)
        self._follow.append(set())
        return _Places(may_be_empty=False, first=place, last=place)

    def _joined(self, left: _Places, right: _Places) -> _Places:
        self._spend(_FOLLOWER * len(left.last) * len(right.first))
        for place in left.last:
            self._follow[place] |= right.first
        return _Places(
            left.may_be_empty and right.may_be_empty,
            self._union([left.first, right.first]) if left.may_be_empty else left.first,
            self._union([left.last, right.last]) if right.may_be_empty else right.last,
        )

    def _repeated(self, part: PatternPart, least: int, most: int | None) -> _Places:
        whole = _Places(may_be_empty=True)
        copies = max(least, 1) if most is None else most
        for number in range(1, copies + 1):
            each = self._build(part)
            if most is None and number == copies:
                self._joined(each, each)  # it may come again
            optional = each.may_be_empty or number > least
            whole = self._joined(whole, _Places(optional, each.first, each.last))
        return whole

    def run(self, name: str) -> set[int]:
        """Return the numbers of the patterns that match at the start of `name`."""
        if self._begin is None:
            behind, hits = self._after_mark(frozenset(self._first), START)
            self._begin = self._step(self._union([self._first, behind])), hits
        step, hits = self._begin
        found = self._always | hits
        body = name.removesuffix("\n")
        for character in body:
            if character not in step.on:
                step.on[character] = self._after_character(step.next, character)
            step, hits = step.on[character]
            found |= hits
        found |= self._at_end(step)
        if body != name:  # `$` also matches before a last line break
            step, hits = self._after_character(step.next, "\n")
            found |= hits | self._at_end(step)
        return found

    def _at_end(self, step: _Step) -> _Set:
        if step.at_end is None:
            step.at_end = self._after_mark(step.next, END)[1]
        return step.at_end

    def _after_character(self, before: _Set, character: str) -> tuple[_Step, _Set]:
        self._spend(sum(self._symbols[place].size for place in before))
        reached = [place for place in before if self._symbols[place].matches(character)]
        return self._step(self._behind(reached)), self._hits(reached)

    def _after_mark(self, before: _Set, mark: Symbol) -> tuple[_Set, _Set]:
        """Pass the positions of `mark` (`^` or `$`) in `before`, which read no character. Return
        the positions that may come next, and the numbers of the patterns that have matched.
        """
        reached: set[int] = set()
        found = before
        while found := frozenset(place for place in found if self._symbols[place] is mark):
            found -= reached
            reached |= found
            found = self._behind(found)
        return self._behind(reached), self._hits(reached)

    def _behind(self, reached: Iterable[int]) -> _Set:
        return self._union(self._follow[place] for place in reached)

    def _hits(self, reached: Iterable[int]) -> _Set:
        return frozenset(self._pattern_at[place] for place in reached if place in self._last)

    def _step(self, next_: _Set) -> _Step:
        if next_ not in self._steps:
            self._kept += 1 + len(next_)
            if self._kept > _MOST_PLACES_KEPT:
                self._forget()
            self._steps[next_] = _Step(next_)
        return self._steps[next_]

    def _forget(self) -> None:
        for step in self._steps.values():
            step.on.clear()
        self._steps.clear()
        self._kept = 0

    def _union(self, sets: Iterable[Set[int]]) -> _Set:
        whole: set[int] = set()
        for each in sets:
            self._spend(1 + len(each))
            whole |= each
        return frozenset(whole)

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > _MOST_WORK:
            raise BadFile(
                f"{self._path}: its patterns of names would take very long to match, and no "
                "program writes such patterns; take another file"
            )


def exclusion_patterns(unwanted: Collection[str], needed: Collection[str]) -> list[str]:
    """Return a small set of patterns that match all names in `unwanted` and no name in `needed`.

    A pattern with a star is used only if it matches at least two names.
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
    """Yield candidate patterns for a name: its first words followed by a star, then a star
    followed by its last words.
    """
    words = _literal(name).split(".")
    for count in range(1, len(words)):
        yield ".".join([*words[:count], "*"])
        yield ".".join(["*", *words[count:]])


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


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
        """The cost of one call of `matches`, counted in comparisons."""
        return 1 + len(self.ranges) + len(self.classes)

    def matches(self, character: str) -> bool:
        """Return whether this position matches `character`."""
        if self.is_start or self.is_end:
            return False
        found = any(low <= character <= high for low, high in self.ranges)
        return (found or any(_is(each, character) for each in self.classes)) != self.negated


@dataclass(frozen=True, slots=True)
class PatternPart:
    """A node of the tree of a pattern.

    It has exactly one of these contents:

    - `symbol`
    - `repeated`, a part that occurs at least `least` and at most `most` times (None: no limit)
    - `parts`, which follow each other or, with `is_choice`, are alternatives
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
            f"{path}: its pattern {pattern!r:.60} has {len(pattern)} characters, but zerotools "
            f"reads at most {_LONGEST}, and no program writes longer ones; take another file"
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
            self._bad("has a ) without a (")
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
            self._bad(f"nests groups more than {_DEEPEST} levels deep")
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
        self._take("?")  # a lazy quantifier: the same names match
        if self._take("+"):
            self._unknown("a + after a repetition")
        if self._text[self._at : self._at + 1] in ("*", "?") or self._count() != (-1, None):
            self._bad("repeats a repetition")
        return PatternPart(repeated=part, least=least, most=most)

    def _count(self) -> tuple[int, int | None]:
        """Return (least, most): how often the part before the quantifier may be repeated. Return
        (-1, None) if no quantifier follows.
        """
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
            f"{self._path}: its pattern {self._text!r:.60} is not a regular expression: it {why}"
        )

    def _unknown(self, what: str) -> NoReturn:
        raise Unsupported(
            f"{self._path}: its pattern {self._text!r:.60} has {what}, which zerotools does not "
            "support; supported are letters, . [a-z] \\d \\w \\s ( ) | * + ? {2,5} ^ and $"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6
