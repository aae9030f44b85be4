"""Read one file of a layout map: a family of models, and the layouts of its weights.

    model_types = ["llama"]                   config.json's `model_type`
    parts = ["decoder", "attention"]          parts that several families share (`with_parts`)
    [short]      L = "model.layers.{i}"       the text for `$L` in names
    [sizes]      hidden = "hidden_size"       numbers for shapes
    [indices]    i = "layers"                 the count of `{i}`
    [hf]         "NAME" = "hidden, hidden if CONDITION"
    [optional]   "NAME" = "CONDITION"         tensors of [hf] that may be missing
    may_lack = ["j"]                          indices of tensors that may be missing together
    [copies]     "NAME" = "NAME"              second copies of tensors that the Hub may have
    [layouts.X]  about, if, ignored, stacked, stacked_dim, stacked_first, same_as, keep; tensors,
                 also, ties, computed

`tensors` has the expression for each tensor of the layout (`expressions`), and an optional
condition `if`. With `keep`, tensors without a rule have the same name and shape as on the Hub.
`also` has other names that a tensor may have on disk; a name with one more index means that the
tensor is stored in parts along its first dimension. `ties` lists names with equal values if
config.json ties the embeddings. `ignored` lists names (with `*`) that are not weights. `stacked`
lists the numbers in names along which the layout stacks its tensors if all layers have the same
tensors; each number becomes dimension `stacked_dim` (default: 0), but dimension 0 under the names
on disk in `stacked_first` (with `*`). `computed` has the tensors that
the program stores scaled or shifted (`value_formulas`). `same_as` names another layout that is
equal to this layout.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from zerotools.core.errors import BadRequest
from zerotools.core.nearest_word import nearest_of
from zerotools.maps.expressions import (
    TensorExpression,
    indices_of,
    parse_size_expression,
    parse_tensor_expression,
    shifts_of,
    size_names_in,
    sizes_in,
    tensors_in,
)
from zerotools.maps.value_formulas import StoredValue, parse_stored_value

PARTS, SHORT = "parts", "short"
_SUFFIX = ".toml"
_WORD = re.compile(r"\$(\w+)")
_DEEPEST = 8
_LONGEST = 20_000

Words = Mapping[str, str]


def with_parts(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Words]:
    """Return the tree of a map with its shared parts inserted and its words (`$L`) replaced, and
    the texts of the words.

        parts = ["decoder", "attention", { parts = ["experts"], L = "model.layers.{mtp+layers}" }]

    A part (`parts/*.toml`) has tables of a map, with words in them: `$L` is replaced by the text of
    the word L. The text comes from the list of parts, else from [short] of the map, else from
    [short] of the part. A key of the map replaces the same key of a part and takes its position.

    Raises:
        ValueError: a part or a word is unknown, two parts disagree, or words refer to each other.
    """
    own = _words(tree.get(SHORT, {}), SHORT)
    taken = list(_used_parts(tree.get(PARTS, []), {}))
    known = {word: text for name, _ in taken for word, text in _words(_part(name)[SHORT]).items()}
    known |= own
    merged: dict[str, Any] = {}
    for name, words in taken:
        part = {key: value for key, value in _part(name).items() if key not in ("about", SHORT)}
        _merge(merged, fill_words(part, {**_words(_part(name)[SHORT]), **own, **words}), name)
    rest = {key: value for key, value in tree.items() if key not in (PARTS, SHORT)}
    return _updated_tables(merged, fill_words(rest, known)), known


@cache
def part_names() -> tuple[str, ...]:
    """Return the names of all shared parts, sorted."""
    names = (each.name for each in (files(__package__) / PARTS).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


@cache
def _part(name: str) -> Mapping[str, Any]:
    tree = tomllib.loads((files(__package__) / PARTS / f"{name}{_SUFFIX}").read_text("utf-8"))
    return {SHORT: {}, **tree}


def _used_parts(parts: Any, words: Words) -> Iterator[tuple[str, Words]]:
    """Yield (name, words) for each shared part that a map uses; `words` are the texts that the map
    sets for words of this part.
    """
    if not isinstance(parts, list):
        raise ValueError(f"{PARTS} must be a list")
    for each in parts:
        if isinstance(each, dict) and PARTS in each and not words:
            said = _words({key: text for key, text in each.items() if key != PARTS}, PARTS)
            yield from _used_parts(each[PARTS], {**said})
        elif not isinstance(each, str):
            raise ValueError(
                f"{PARTS} has {each!r:.60}, which is not the name of a part; it must be a list "
                "of names of parts"
            )
        elif each not in part_names():
            near = nearest_of(each, part_names())
            raise ValueError(
                f"{PARTS} has {each}, but no part has this name; the nearest is {near}"
            )
        else:
            yield each, words


def _words(table: Any, where: str = SHORT) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table")
    for word, text in table.items():
        if not isinstance(text, str):
            raise ValueError(f"{word} is {text!r:.60}, but must be text in quotes")
    return dict(table)


def fill_words(value: Any, words: Words) -> Any:
    """Return a tree or a text in which every word (`$L`) is replaced by its text.

    Raises:
        ValueError: a word is unknown, or words refer to each other.
    """
    if isinstance(value, str):
        return _filled_text(value, words)
    if isinstance(value, list):
        return [fill_words(each, words) for each in value]
    if isinstance(value, dict):
        return {fill_words(key, words): fill_words(each, words) for key, each in value.items()}
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
    raise ValueError(
        f"words of [{SHORT}] refer to each other, or are too long when expanded: {text[:60]!r}"
    )


def _merge(into: dict[str, Any], part: Mapping[str, Any], name: str) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value, name)
        elif into.setdefault(key, value) != value:
            raise ValueError(
                f"the part {name} gives {key} another value than an earlier part; remove one of "
                "the two"
            )


def _updated_tables(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Update the tables `below` with the keys and values of `above`, and return `below`."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _updated_tables(below[key], value)
        else:
            below[key] = value
    return below


HUB = "hf"
"""The name of the Hub's layout. Every other layout is described by expressions over its tensors."""
_KEYS = (
    "about", "model_types", PARTS, SHORT, "sizes", "indices", HUB, "optional", "may_lack", "copies",
    "layouts",
)  # fmt: skip
_MOST_DIMENSIONS = 8
LAYOUT_KEYS = (
    "about", "if", "ignored", "stacked", "stacked_dim", "stacked_first", "same_as", "keep",
    "tensors", "also", "ties", "computed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FamilyTensor:
    """A tensor in the Hub's layout: expressions for its shape, and the condition under which it
    exists.
    """

    shape: tuple[str, ...]
    condition: str = "True"


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One rule of a layout: the expression for a tensor, and the condition under which the tensor
    exists.
    """

    expression: TensorExpression
    condition: str = "True"


@dataclass(frozen=True, slots=True)
class MapLayout:
    """One `[layouts.X]` table: how a program arranges the tensors of the family."""

    name: str
    about: str = ""
    condition: str = "True"
    ignored: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    stacked_dim: int = 0
    stacked_first: tuple[str, ...] = ()
    same_as: str | None = None
    keep: bool = False
    tensors: Mapping[str, TensorRule] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, StoredValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FamilyMap:
    """The content of one map file: a family of models."""

    name: str
    about: str
    model_types: tuple[str, ...]
    sizes: Mapping[str, str]
    indices: Mapping[str, str]
    hub: Mapping[str, FamilyTensor]
    optional: Mapping[str, str]
    layouts: Mapping[str, MapLayout]
    may_lack: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)

    def names_used(self) -> set[str]:
        """Return all names that occur in the map's sizes, indices and conditions."""
        texts = [*self.sizes.values(), *self.indices.values(), *self.optional.values()]
        for tensor in self.hub.values():
            texts += (*tensor.shape, tensor.condition)
        for layout in self.layouts.values():
            texts.append(layout.condition)
            for rule in layout.tensors.values():
                texts += (*sizes_in(rule.expression), rule.condition)
        names = {name for text in texts for name in size_names_in(text)}
        return {*self.sizes, *self.indices, *names}

    def shifts(self) -> frozenset[tuple[str, str]]:
        """Return (index, expression) for each number in a name that is computed from an index."""
        patterns = [*self.hub, *self.copies]
        for layout in self.layouts.values():
            patterns += (*layout.tensors, *layout.also)
        return frozenset(each for pattern in patterns for each in shifts_of(pattern))


def read_map(text: bytes, name: str) -> FamilyMap:
    """Return the map in `text`; `name` is its source, for messages.

    Raises:
        BadRequest: the text is not TOML, or a key, word or name in it is unknown; the message has
            the line and the most similar known name.
    """
    try:
        source = text.decode()
        tree = tomllib.loads(source)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadRequest(f"{name} is not valid TOML: {error!s:.200}") from None
    return _MapReader(source, name).family(tree)


class _MapReader:
    """Checks all parts of a map's tree. Error messages contain the line of the faulty part."""

    def __init__(self, text: str, name: str) -> None:
        self._lines = text.splitlines()
        self._name = name
        self._words: Mapping[str, str] = {}
        self._sizes: Mapping[str, str] = {}

    def family(self, tree: Mapping[str, Any]) -> FamilyMap:
        self._known(tree, _KEYS, "the map")
        try:
            tree, self._words = with_parts(tree)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{self._name}: {error!s:.200}") from None
        for key in ("model_types", "sizes", "indices", HUB, "layouts"):
            if key not in tree:
                raise BadRequest(f"{self._name} has no {key}, which a map needs")
        indices, sizes = self._texts(tree, "indices"), self._texts(tree, "sizes")
        for name, size in {**sizes, **indices}.items():
            self._expression(name, size)
        hub = {key: self._hub(key, text) for key, text in self._texts(tree, HUB).items()}
        self._sizes = sizes
        self._known_indices(hub, indices)
        copies = self._texts(tree, "copies")
        self._known_indices(copies, indices)
        self._known(copies.values(), hub, f"[{HUB}]")
        may_lack = self._list(tree, "may_lack")
        self._known(may_lack, indices, "[indices]")
        optional = self._texts(tree, "optional")
        for key, condition in optional.items():
            self._known([key], hub, "[optional]")
            self._expression(key, condition)
        layouts = self._table(tree, "layouts")
        found = {key: self._layout(key, layouts[key], hub, indices) for key in layouts}
        for key, layout in found.items():
            if layout.same_as is not None and layout.same_as not in found:
                self._fail(
                    key, f"layout {key} has same_as = {layout.same_as}, but no layout has this name"
                )
        return FamilyMap(
            name=self._name.rsplit("/", 1)[-1].removesuffix(".toml"),
            about=str(tree.get("about", "")),
            model_types=self._list(tree, "model_types"),
            sizes=self._in_order(sizes),
            indices=indices,
            hub=hub,
            optional=optional,
            layouts=found,
            may_lack=may_lack,
            copies=copies,
        )

    def _hub(self, key: str, text: str) -> FamilyTensor:
        shape, _, condition = text.partition(" if ")
        sizes = tuple(size.strip() for size in shape.split(",") if size.strip())
        condition = condition.strip() or "True"
        for each in (*sizes, condition):
            self._expression(key, each)
        return FamilyTensor(sizes, condition)

    def _layout(
        self, name: str, tree: Any, hub: Mapping[str, FamilyTensor], indices: Mapping[str, str]
    ) -> MapLayout:
        if not isinstance(tree, dict):
            self._fail(name, f"layouts.{name} must be a table")
        if name == HUB:
            self._fail(name, f"the layout {HUB} is written in [{HUB}]; remove its second table")
        self._known(tree, LAYOUT_KEYS, f"layouts.{name}")
        condition = str(tree.get("if", "True"))
        self._expression(name, condition)
        tensors = {
            key: self._tensor(key, text, hub) for key, text in self._texts(tree, "tensors").items()
        }
        self._known_indices(tensors, indices)
        also, ties = self._texts(tree, "also"), self._texts(tree, "ties")
        for key, meant in (*also.items(), *ties.items()):
            self._known([meant], tensors, f"the tensors of layouts.{name}")
            more = sorted({*indices_of(key)} - {*indices_of(meant)})
            if {*indices_of(meant)} - {*indices_of(key)} or len(more) > (key in also):
                self._fail(key, f"{key} and {meant} must have the same indices")
            self._known(more, indices, "[indices]")
            if any(index in more for index, _ in shifts_of(key)):
                self._fail(
                    key,
                    f"{key} must name its parts by plain indices, and not compute an index from a "
                    "size",
                )
        stacked = tree.get("stacked", [])
        stacked = [stacked] if isinstance(stacked, str) else stacked
        stacked = self._list({"stacked": stacked}, "stacked")
        for text in stacked:
            self._known(indices_of(f"{{{text}}}") or [text], indices, "[indices]")
        stacked_dim = tree.get("stacked_dim", 0)
        if type(stacked_dim) is not int or not 0 <= stacked_dim <= _MOST_DIMENSIONS:
            self._fail(
                name,
                f"stacked_dim is {stacked_dim!r:.60}, but must be a whole number from 0 to "
                f"{_MOST_DIMENSIONS}",
            )
        return MapLayout(
            name=name,
            about=str(tree.get("about", "")),
            condition=condition,
            ignored=self._list(tree, "ignored"),
            stacked=stacked,
            stacked_dim=stacked_dim,
            stacked_first=self._list(tree, "stacked_first"),
            same_as=tree.get("same_as"),
            keep=tree.get("keep") is True,
            tensors=tensors,
            also=also,
            ties=ties,
            computed=self._computed(name, tree, tensors),
        )

    def _computed(
        self, name: str, tree: Mapping[str, Any], tensors: Mapping[str, TensorRule]
    ) -> dict[str, StoredValue]:
        found = self._texts(tree, "computed")
        self._known(found, tensors, f"the tensors of layouts.{name}")
        rules = {}
        for key, text in found.items():
            try:
                rules[key] = parse_stored_value(text)
            except ValueError as error:
                self._fail(key, f"{key}: {error}")
        return rules

    def _tensor(self, key: str, text: str, hub: Mapping[str, FamilyTensor]) -> TensorRule:
        made, _, condition = text.partition(" if ")
        condition = condition.strip() or "True"
        self._expression(key, condition)
        try:
            found = parse_tensor_expression(made)
        except ValueError as error:
            self._fail(key, f"{key}: {error}")
        self._known(tensors_in(found), hub, f"[{HUB}]")
        return TensorRule(found, condition)

    def _known_indices(self, names: Any, indices: Mapping[str, str]) -> None:
        for name in names:
            for index in indices_of(name):
                if index not in indices:
                    self._fail(
                        name, f"{name} uses the index {{{index}}}, but [indices] does not define it"
                    )
            for index, text in shifts_of(name):
                self._expression(name, text)
                self._known(size_names_in(text) - {index}, self._sizes, "[sizes]")

    def _expression(self, key: str, text: str) -> None:
        try:
            parse_size_expression(text)
        except ValueError as error:
            self._fail(key, f"{key}: {error}")

    def _known(self, keys: Any, known: Any, where: str) -> None:
        for key in keys:
            if key not in known:
                near = nearest_of(key, known)
                self._fail(key, f"{key} is not known in {where}; the nearest is {near}")

    def _table(self, tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = tree.get(key, {})
        if not isinstance(found, dict):
            self._fail(key, f"{key} is not a table")
        return found

    def _texts(self, tree: Mapping[str, Any], key: str) -> dict[str, str]:
        found = self._table(tree, key)
        for name, value in found.items():
            if not isinstance(value, str | int) or isinstance(value, bool):
                self._fail(name, f"{name} is {value!r:.60}, but must be text in quotes")
        return {name: str(value) for name, value in found.items()}

    def _in_order(self, sizes: Mapping[str, str]) -> dict[str, str]:
        """Return the sizes sorted so that each size comes after the sizes that its expression uses.

        A size that has the same name as a key of config.json may use this key in its definition.
        """
        done: dict[str, str] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                self._fail(name, f"the sizes {' and '.join(above)} depend on each other")
            for other in sorted(size_names_in(sizes[name]) & {*sizes} - {*done, name}):
                add(other, (*above, name))
            done[name] = sizes[name]

        for name in sizes:
            if name not in done:
                add(name, ())
        return done

    def _list(self, tree: Mapping[str, Any], key: str) -> tuple[str, ...]:
        found = tree.get(key, [])
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            self._fail(key, f"{key} must be a list of words")
        return tuple(found)

    def _fail(self, key: str, said: str) -> NoReturn:
        raise BadRequest(f"{self._name}, line {self._line(key)}: {said}")

    def _line(self, key: str) -> int:
        wanted = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w.])")
        lines = enumerate(map(self._full, self._lines), 1)
        found = (number for number, line in lines if wanted.search(line))
        return next(found, 1)

    def _full(self, line: str) -> str:
        try:
            return str(fill_words(line, self._words))
        except ValueError:
            return line
