r"""Match regular expressions against tensor names, in time linear in the length of the names.

Checkpoints contain patterns (`universal_checkpoint_info`, an adapter's `rank_pattern`). `re`
backtracks: with `(a+)+$` it needs years to reject thirty letters. So all patterns are followed at
once, character by character, by the set of positions that may come next (Glushkov's automaton). In
`a(b|c)*d` the positions are a, b, c and d; after `ab` any of b, c and d may follow. A name costs
one step per character, whatever the number and the content of the patterns.

    NamePatterns([r".*\.(q|k)_proj\.weight", "^lm_head$"], path).matching("x.q_proj.weight")

The result is only whether `re.match` would match. So `*` and `*?` are equal, and group names are
ignored. Lookahead, lookbehind and flags cannot be followed in this way and are rejected: neither
DeepSpeed nor Megatron nor PEFT writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from zerotools.core.errors import BadFile
from zerotools.core.pattern_syntax import (
    END,
    START,
    PatternPart,
    Symbol,
    exact_text,
    parse_pattern,
)

_MOST_WORK = 20_000_000
_PLACE, _FOLLOWER = 200, 40  # cost of making and keeping one; a step costs 1
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
    """The positions of a part of a pattern at which a match may begin and end."""

    may_be_empty: bool
    first: _Set = _NOTHING
    last: _Set = _NOTHING


@dataclass(slots=True)
class _Step:
    """A state of the automaton: the set of positions that may come next.

    For each character it stores the next state and the patterns that matched. It also stores the
    patterns that match if the name ends here. States are created when they are first needed.
    """

    next: _Set
    on: dict[str, tuple[_Step, _Set]] = field(default_factory=dict)
    at_end: _Set | None = None


class _Automaton:
    """All patterns that are not plain text, followed at once."""

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
        """Add the pattern with this number. Must be called before the first `run`."""
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
            behind, hits = self._through(frozenset(self._first), START)
            self._begin = self._step(self._union([self._first, behind])), hits
        step, hits = self._begin
        found = self._always | hits
        body = name.removesuffix("\n")
        for character in body:
            if character not in step.on:
                step.on[character] = self._taken(step.next, character)
            step, hits = step.on[character]
            found |= hits
        found |= self._at_end(step)
        if body != name:  # `$` may stand before a last end of line, too
            step, hits = self._taken(step.next, "\n")
            found |= hits | self._at_end(step)
        return found

    def _at_end(self, step: _Step) -> _Set:
        if step.at_end is None:
            step.at_end = self._through(step.next, END)[1]
        return step.at_end

    def _taken(self, before: _Set, character: str) -> tuple[_Step, _Set]:
        """Return the state after `character` at the positions `before`, and the patterns that
        matched."""
        self._spend(sum(self._symbols[place].size for place in before))
        reached = [place for place in before if self._symbols[place].takes(character)]
        return self._step(self._behind(reached)), self._hits(reached)

    def _through(self, before: _Set, mark: Symbol) -> tuple[_Set, _Set]:
        """Return the same as `_taken` for `^` and `$`, which consume no character and may follow
        each other."""
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
                f"{self._path}: its patterns of names would take very long to match; no program "
                "writes such patterns: do not use it"
            )


def exclusions(unwanted: Collection[str], needed: Collection[str]) -> list[str]:
    """Return a small set of patterns that match all names `unwanted` and no name `needed`.

    A pattern with a star matches at least two names.
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
    """Yield patterns of the first words of a name, then of its last words."""
    words = _literal(name).split(".")
    for count in range(1, len(words)):
        yield ".".join([*words[:count], "*"])
        yield ".".join(["*", *words[count:]])


def _literal(name: str) -> str:
    """Return the pattern that matches exactly `name`."""
    return re.sub(r"([*?[])", r"[\1]", name)
