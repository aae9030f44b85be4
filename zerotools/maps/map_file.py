"""One file of a layout map: a family of models, and the layouts of its weights.

    model_types = ["llama"]                   config.json's `model_type`
    parts = ["decoder", "attention"]          parts in common with other families (`map_parts`)
    [short]      L = "model.layers.{i}"       the text for `$L` in names
    [sizes]      hidden = "hidden_size"       numbers for shapes
    [indices]    i = "layers"                 the count of `{i}`
    [hf]         "NAME" = "hidden, hidden if CONDITION"
    [optional]   "NAME" = "CONDITION"         tensors of [hf] that may be missing
    may_lack = ["j"]                          indices of tensors that may be missing together
    [copies]     "NAME" = "NAME"              second copies of tensors, as the Hub may have them
    [layouts.X]  about, if, ignored, stacked, same_as, keep; tensors, also, ties

`tensors` has the parts of each tensor of the layout (`tensor_expressions`), and perhaps the
condition `if`; with `keep` all tensors without a rule stay as on the Hub. `also` has other names
that a tensor may have on disk (with one index more: its parts along the first dimension). `ties`
lists names with the same values if config.json ties the embeddings, and `ignored` names (with `*`)
that are not weights. `stacked` is the index along which the layout stacks its tensors if all layers
are alike. `same_as` is another layout that this one equals.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from zerotools.core.errors import BadRequest
from zerotools.core.patterns.nearest import nearest_of
from zerotools.maps.map_parts import PARTS, SHORT, filled, with_parts
from zerotools.maps.size_expressions import names_in as size_names
from zerotools.maps.size_expressions import parsed
from zerotools.maps.tensor_expressions import (
    TensorExpression,
    indices_of,
    names_in,
    parse,
    shifts_of,
    sizes_in,
)

HUB = "hf"
"""The layout of the Hub, the base of every other layout."""
_KEYS = (
    "about", "model_types", PARTS, SHORT, "sizes", "indices", HUB, "optional", "may_lack", "copies",
    "layouts",
)  # fmt: skip
LAYOUT_KEYS = (
    "about", "if", "ignored", "stacked", "same_as", "keep", "tensors", "also", "ties",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FamilyTensor:
    """A tensor of the Hub: its shape, one expression for each dimension, and when it is there."""

    shape: tuple[str, ...]
    condition: str = "True"


@dataclass(frozen=True, slots=True)
class TensorRule:
    """The parts of a layout's tensor, and the condition for it."""

    expression: TensorExpression
    condition: str = "True"


@dataclass(frozen=True, slots=True)
class MapLayout:
    """How one program arranges the tensors of the family; see the head of the file."""

    name: str
    about: str = ""
    condition: str = "True"
    ignored: tuple[str, ...] = ()
    stacked: str | None = None
    same_as: str | None = None
    keep: bool = False
    tensors: Mapping[str, TensorRule] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FamilyMap:
    """One file: a family of models."""

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

    def said_by(self) -> set[str]:
        """Return the names that sizes and conditions use."""
        texts = [*self.sizes.values(), *self.indices.values(), *self.optional.values()]
        for tensor in self.hub.values():
            texts += (*tensor.shape, tensor.condition)
        for layout in self.layouts.values():
            texts.append(layout.condition)
            for rule in layout.tensors.values():
                texts += (*sizes_in(rule.expression), rule.condition)
        names = {name for text in texts for name in size_names(text)}
        return {*self.sizes, *self.indices, *names}

    def shifts(self) -> frozenset[tuple[str, str]]:
        """Return indices that are counted on from a size, and which."""
        patterns = [*self.hub, *self.copies]
        for layout in self.layouts.values():
            patterns += (*layout.tensors, *layout.also)
        return frozenset(each for pattern in patterns for each in shifts_of(pattern))


def read_map(text: bytes, name: str) -> FamilyMap:
    """Return the map in `text`; `name` is its source.

    Raises:
        BadRequest: it is not TOML, or a key, a word or a name in it is not known; the message has
            the line, and the nearest known name.
    """
    try:
        source = text.decode()
        tree = tomllib.loads(source)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadRequest(f"{name} is not TOML: {error!s:.200}") from None
    return _MapReader(source, name).family(tree)


class _MapReader:
    """Checks each part of a tree, and reports the line of an error."""

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
                self._fail(key, f"layout {key} is same_as {layout.same_as}, which does not exist")
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
            self._fail(name, f"layouts.{name} is not a table")
        if name == HUB:
            self._fail(name, f"{HUB} is the layout of [{HUB}], and has no separate table")
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
                self._fail(key, f"{key} and {meant} have different indices")
            self._known(more, indices, "[indices]")
            if any(index in more for index, _ in shifts_of(key)):
                self._fail(key, f"{key} counts the index of its parts from a size")
        stacked = tree.get("stacked")
        if stacked is not None:
            self._known([str(stacked)], indices, "[indices]")
        return MapLayout(
            name=name,
            about=str(tree.get("about", "")),
            condition=condition,
            ignored=self._list(tree, "ignored"),
            stacked=stacked,
            same_as=tree.get("same_as"),
            keep=tree.get("keep") is True,
            tensors=tensors,
            also=also,
            ties=ties,
        )

    def _tensor(self, key: str, text: str, hub: Mapping[str, FamilyTensor]) -> TensorRule:
        made, _, condition = text.partition(" if ")
        condition = condition.strip() or "True"
        self._expression(key, condition)
        try:
            found = parse(made)
        except ValueError as error:
            self._fail(key, f"{key}: {error}")
        self._known(names_in(found), hub, f"[{HUB}]")
        return TensorRule(found, condition)

    def _known_indices(self, names: Any, indices: Mapping[str, str]) -> None:
        for name in names:
            for index in indices_of(name):
                if index not in indices:
                    self._fail(name, f"{name} has the index {{{index}}}, not in [indices]")
            for _, size in shifts_of(name):
                self._known([size], self._sizes, "[sizes]")

    def _expression(self, key: str, text: str) -> None:
        try:
            parsed(text)
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
                self._fail(name, f"{name} is {value!r:.60}, and must be text in quotes")
        return {name: str(value) for name, value in found.items()}

    def _in_order(self, sizes: Mapping[str, str]) -> dict[str, str]:
        """Return each size after those that define it. One with the name of a key of config.json
        may be defined by that key."""
        done: dict[str, str] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                self._fail(name, f"the sizes {' and '.join(above)} depend on each other")
            for other in sorted(size_names(sizes[name]) & {*sizes} - {*done, name}):
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
            return str(filled(line, self._words))
        except ValueError:
            return line
