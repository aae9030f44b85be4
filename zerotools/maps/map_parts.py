"""Parts of maps that families have in common.

    parts = ["decoder", "attention", { parts = ["experts"], L = "model.layers.{mtp+layers}" }]

A part (`parts/*.toml`) has tables of a map, with words in them: `$L` is replaced by the text of the
word L. The text comes from the list of parts, else from [short] of the map, else from that of the
part. A key of the map overrides the same key of its parts, in its position.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from zerotools.core.patterns.nearest import nearest_of

PARTS, SHORT = "parts", "short"
_SUFFIX = ".toml"
_WORD = re.compile(r"\$(\w+)")
_DEEPEST = 8
_LONGEST = 20_000

Words = Mapping[str, str]


def with_parts(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Words]:
    """Return the tree of a map with all its parts and words filled in, and the words.

    Raises:
        ValueError: a part or a word is unknown, two parts disagree, or words refer to each other.
    """
    own = _words(tree.get(SHORT, {}), SHORT)
    taken = list(_taken(tree.get(PARTS, []), {}))
    known = {word: text for name, _ in taken for word, text in _words(_part(name)[SHORT]).items()}
    known |= own
    merged: dict[str, Any] = {}
    for name, words in taken:
        part = {key: value for key, value in _part(name).items() if key not in ("about", SHORT)}
        _merge(merged, filled(part, {**_words(_part(name)[SHORT]), **own, **words}), name)
    rest = {key: value for key, value in tree.items() if key not in (PARTS, SHORT)}
    return _laid_over(merged, filled(rest, known)), known


@cache
def part_names() -> tuple[str, ...]:
    """Return all parts, in order of their names."""
    names = (each.name for each in (files(__package__) / PARTS).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


@cache
def _part(name: str) -> Mapping[str, Any]:
    tree = tomllib.loads((files(__package__) / PARTS / f"{name}{_SUFFIX}").read_text("utf-8"))
    return {SHORT: {}, **tree}


def _taken(parts: Any, words: Words) -> Iterator[tuple[str, Words]]:
    """Yield the name of each part, with the words that are set with it."""
    if not isinstance(parts, list):
        raise ValueError(f"{PARTS} must be a list")
    for each in parts:
        if isinstance(each, dict) and PARTS in each and not words:
            said = _words({key: text for key, text in each.items() if key != PARTS}, PARTS)
            yield from _taken(each[PARTS], {**said})
        elif not isinstance(each, str):
            raise ValueError(f"{PARTS} has {each!r:.60}, and must have names of parts")
        elif each not in part_names():
            near = nearest_of(each, part_names())
            raise ValueError(f"{each} is not known in {PARTS}; the nearest is {near}")
        else:
            yield each, words


def _words(table: Any, where: str = SHORT) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table")
    for word, text in table.items():
        if not isinstance(text, str):
            raise ValueError(f"{word} is {text!r:.60}, and must be text in quotes")
    return dict(table)


def filled(value: Any, words: Words) -> Any:
    """Return the tree, or text, with words replaced.

    Raises:
        ValueError: a word is unknown, or words refer to each other.
    """
    if isinstance(value, str):
        return _filled_text(value, words)
    if isinstance(value, list):
        return [filled(each, words) for each in value]
    if isinstance(value, dict):
        return {filled(key, words): filled(each, words) for key, each in value.items()}
    return value


def _filled_text(text: str, words: Words) -> str:
    for _ in range(_DEEPEST):
        found = _WORD.findall(text)
        if not found:
            return text
        unknown = next((word for word in found if word not in words), None)
        if unknown is not None:
            near = f"; the nearest is ${nearest_of(unknown, words)}" if words else ""
            raise ValueError(f"${unknown} is not defined in [{SHORT}]{near}")
        if len(text) + sum(len(words[word]) for word in found) > _LONGEST:
            break
        text = _WORD.sub(lambda word: words[word[1]], text)
    raise ValueError(f"words of [{SHORT}] refer to each other, or become too long: {text[:60]!r}")


def _merge(into: dict[str, Any], part: Mapping[str, Any], name: str) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value, name)
        elif into.setdefault(key, value) != value:
            raise ValueError(f"the part {name} has another {key} than the parts before it")


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of `below` with the keys of `above`."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _laid_over(below[key], value)
        else:
            below[key] = value
    return below
