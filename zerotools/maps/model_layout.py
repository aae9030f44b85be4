"""A layout of one model: the tensors in the layout and on the Hub with their shapes, and the views
between them.

The inverse is derived. For each tensor of the Hub, its parts in the layout must cover every element
of the tensor exactly once. This proves that the layout loses nothing and repeats only padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from zerotools.core.boxes import Hole, Overlap, prove_cover
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.maps.expression_views import (
    BoundExpression,
    BoundOperation,
    BoundTensor,
    Shape,
    inverses_of,
    padded_rows,
    view_of,
)
from zerotools.maps.expressions import (
    Operation,
    TensorExpression,
    TensorName,
    indices_of,
    size_of,
    unmet_part,
    value_of,
    with_indices,
)
from zerotools.maps.map_file import HUB, FamilyMap, MapLayout
from zerotools.maps.map_variables import MOST_TENSORS, MULTIPLE, MapSizes
from zerotools.maps.value_formulas import BoundValue
from zerotools.maps.views import TensorView, View, ViewPiece, whole_view

_TENSOR_PARALLEL = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class ModelLayout:
    """One layout of the weights of one model.

    Attributes:
        tensors, hub: name -> shape, in the layout and on the Hub.
        of_hub: each name in `tensors` -> the view that makes this tensor from the Hub's tensors.
        to_hub: each name in `hub` -> the view that makes this tensor from the layout's tensors.
        optional: names in `tensors` or `hub` that may be missing.
        patterns: each name in `tensors` -> its pattern in the map, and the values of its indices.
        padded: name of a padded tensor -> (its number of rows in the checkpoint, its number of rows
            on the Hub).
        zeros: padded tensors with added rows of zeros.
        copies: a name under which a checkpoint may repeat a tensor -> the name of the original.
        computed: each name in `tensors` that the program stores scaled or shifted -> the rule for
            its values.
    """

    family: FamilyMap
    layout: MapLayout
    hub: Mapping[str, Shape]
    tensors: Mapping[str, Shape]
    of_hub: Mapping[str, TensorView]
    to_hub: Mapping[str, TensorView]
    optional: frozenset[str]
    patterns: Mapping[str, tuple[str, Mapping[str, int]]] = field(default_factory=dict)
    padded: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    zeros: frozenset[str] = frozenset()
    computed: Mapping[str, BoundValue] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.layout.name


def layout_of_model(
    family: FamilyMap,
    name: str,
    config: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
    rows: Mapping[str, int] | None = None,
) -> ModelLayout:
    """Return the layout `name` of the model that config.json describes.

    `given` are arguments, which have priority over config.json. `rows` are the row counts of padded
    tensors in a checkpoint.

    Raises:
        BadRequest: the map is not for this model, its sizes do not fit, or the layout does not
            contain each element of the Hub's tensors exactly once.
    """
    sizes = MapSizes.of(family, config, given or {})
    hub, optional = _hub_shapes(family, sizes)
    if name == HUB:
        return _plain(family, hub, optional, sizes)
    layout = family.layouts[name]
    if layout.same_as is not None:
        base = family.layouts[layout.same_as]
        layout = replace(base, name=name, about=layout.about, same_as=layout.same_as)
    if unmet := unmet_part(layout.condition, sizes.values):
        raise BadRequest(
            f"the layout {name} of the map {family.name} is only for models with {unmet} in "
            "config.json; choose another layout"
        )
    return _Maker(family, layout, sizes, hub, optional, rows or {}).made()


def _plain(
    family: FamilyMap, hub: Mapping[str, Shape], optional: frozenset[str], sizes: MapSizes
) -> ModelLayout:
    views = {name: TensorView(whole_view(0, shape), (name,)) for name, shape in hub.items()}
    about = "in the form of the Hub and of save_pretrained"
    ignored = ("*.rotary_emb.inv_freq",)
    layout = MapLayout(HUB, about, ignored=ignored)
    return ModelLayout(
        family, layout, hub, hub, views, views, optional,
        copies=_copies(family, sizes),
    )  # fmt: skip


def _copies(family: FamilyMap, sizes: MapSizes) -> dict[str, str]:
    return {
        with_indices(copy, indices): with_indices(name, indices)
        for copy, name in family.copies.items()
        for indices in sizes.indices_of(copy)
    }


def _hub_shapes(family: FamilyMap, sizes: MapSizes) -> tuple[dict[str, Shape], frozenset[str]]:
    found: dict[str, Shape] = {}
    optional = set()
    for pattern, tensor in family.hub.items():
        for indices in sizes.indices_of(pattern):
            names = {**sizes.values, **indices}
            if not value_of(tensor.condition, names):
                continue
            name = with_indices(pattern, indices)
            found[name] = tuple(size_of(size, names) for size in tensor.shape)
            if pattern in family.optional and value_of(family.optional[pattern], names):
                optional.add(name)
    return found, frozenset(optional)


class _Absent(Exception):
    """The model does not have the tensor `name`, or has no tensor of a rule."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class _Maker:
    family: FamilyMap
    layout: MapLayout
    sizes: MapSizes
    hub: Mapping[str, Shape]
    optional: frozenset[str]
    rows: Mapping[str, int]
    bound: dict[str, tuple[BoundExpression, tuple[str, ...]]] = field(default_factory=dict)
    patterns: dict[str, tuple[str, Mapping[str, int]]] = field(default_factory=dict)
    padded: dict[str, tuple[int, int]] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)

    def made(self) -> ModelLayout:
        for pattern, rule in self.layout.tensors.items():
            for indices in self.sizes.indices_of(pattern):
                if value_of(rule.condition, {**self.sizes.values, **indices}):
                    self._bind(pattern, rule.expression, indices)
        if self.layout.keep:
            self._keep()
        of_hub = {name: TensorView(self._view(name), names) for name, (_, names) in
                  self.bound.items()}  # fmt: skip
        optional = {
            name
            for name, (_, names) in self.bound.items()
            if all(each in self.optional for each in names)
        }
        return ModelLayout(
            family=self.family,
            layout=self.layout,
            hub=self.hub,
            tensors={name: view.view.shape for name, view in of_hub.items()},
            of_hub=of_hub,
            to_hub=self._to_hub(),
            optional=self.optional | optional,
            patterns=self.patterns,
            padded=self.padded,
            copies=_copies(self.family, self.sizes) if self.layout.keep else {},
            zeros=frozenset(self.zeros),
            computed=dict(self._computed()),
        )

    def _computed(self) -> Iterator[tuple[str, BoundValue]]:
        for name, (pattern, indices) in self.patterns.items():
            if pattern in self.layout.computed:
                names = {**self.sizes.values, **indices}
                rule = self.layout.computed[pattern].bound(names)
                if rule is not None and rule.is_root and not rule.size:
                    raise BadRequest(
                        f"{name} of the map {self.family.name} is scaled by the square root of 0; "
                        "the number must be 1 or more"
                    )
                if rule is not None:
                    yield name, rule

    def _view(self, name: str) -> View:
        try:
            return view_of(self.bound[name][0])
        except BadRequest as error:
            raise BadRequest(f"{name} of the map {self.family.name}: {error}") from None

    def _bind(self, pattern: str, expression: TensorExpression, indices: Mapping[str, int]) -> None:
        name = with_indices(pattern, indices)
        if name in self.bound:
            first = self.patterns[name][0]
            raise BadRequest(
                f"{name} is ambiguous, because the rules {first} and {pattern} both make it; "
                "correct the map"
            )
        binding = _Binding(self, name, indices)
        try:
            made = binding.bind(expression, {})
        except _Absent as lacking:
            there = next((each for each in binding.names if each in self.hub), None)
            if there is None:
                return
            raise BadRequest(
                f"the map {self.family.name} does not fit: it makes {name} of {there} and "
                f"{lacking.name}, but according to config.json the model has only {there}; choose "
                "another map, or give the config.json of this model"
            ) from None
        self.bound[name] = made, tuple(binding.names)
        self.patterns[name] = pattern, indices

    def _keep(self) -> None:
        taken = {name for _, names in self.bound.values() for name in names}
        for name in self.hub:
            if name not in taken:
                self._bind(name, TensorName(name), {})

    def _to_hub(self) -> dict[str, TensorView]:
        parts: dict[str, list[tuple[tuple[ViewPiece, ...], str]]] = {}
        for name, (bound, names) in self.bound.items():
            self._view(name)
            for pieces, each in zip(inverses_of(bound), names, strict=True):
                parts.setdefault(each, []).append((pieces, name))
        return {name: self._hub_view(name, parts.get(name, [])) for name in self.hub}

    def _hub_view(
        self, name: str, parts: Sequence[tuple[tuple[ViewPiece, ...], str]]
    ) -> TensorView:
        names = tuple(each for _, each in parts)
        if not parts:
            near = ", ".join(list(self.bound)[:1])
            raise BadRequest(
                f"the layout {self.layout.name} of the map {self.family.name} is incomplete: no "
                f"rule uses {name}, so it would be lost; add a rule for it (the first rule makes "
                f"{near})"
            )
        found = _proved(tuple(pieces for pieces, _ in parts), self.hub[name])
        if isinstance(found, Hole):
            raise BadRequest(
                f"the layout {self.layout.name} of the map {self.family.name} is not invertible: "
                f"{found.missing} elements of {name}, the first in {found.box}, are in none of "
                f"{', '.join(names)}"
            )
        if isinstance(found, Overlap):
            rules = " and ".join(dict.fromkeys(self.patterns[each][0] for each in names))
            raise BadRequest(
                f"the layout {self.layout.name} of the map {self.family.name} is not invertible: "
                f"two rules use {found.second} of {name}: {rules}"
            )
        return TensorView(found, names)


@lru_cache(maxsize=1024)
def _proved(parts: tuple[tuple[ViewPiece, ...], ...], shape: Shape) -> View | Hole | Overlap:
    """Return the pieces from all sources as a view if they cover `shape` without overlap, else
    return the hole or the overlap. Two equal boxes overlap too.
    """
    pieces = tuple(
        replace(piece, source=number) for number, part in enumerate(parts) for piece in part
    )
    seen = {}
    for piece in pieces:
        if piece.box in seen and not piece.box.is_empty:
            return Overlap(piece.box, piece.box)
        seen[piece.box] = piece
    try:
        fault = prove_cover(shape, list(seen))
    except ValueError:
        fault = Hole(pieces[0].box, 0)
    return View(shape, pieces) if fault is None else fault


@dataclass
class _Binding:
    """Replaces the sizes of one expression by numbers, and records its tensors."""

    maker: _Maker
    target: str
    indices: Mapping[str, int]
    names: dict[str, int] = field(default_factory=dict)

    def bind(self, expression: TensorExpression, more: Mapping[str, int]) -> BoundExpression:
        indices = {**self.indices, **more}
        if isinstance(expression, TensorName):
            return self._tensor(expression.pattern, indices)
        if expression.word == "stack":
            return self._stack(expression, more)
        if expression.word in ("pad", "zeros"):
            return self._pad(expression, more)
        parts = self._parts(expression, more)
        sizes = tuple(self._size(size, indices) for size in expression.sizes)
        return BoundOperation(expression.word, parts, sizes)

    def _parts(self, expression: Operation, more: Mapping[str, int]) -> tuple[BoundExpression, ...]:
        found: list[BoundExpression] = []
        absent: _Absent | None = None
        for each in expression.tensors:  # all are evaluated, so that `names` has the existing ones
            try:
                found.append(self.bind(each, more))
            except _Absent as error:
                absent = error
        if absent is not None:
            raise absent
        return tuple(found)

    def _tensor(self, pattern: str, indices: Mapping[str, int]) -> BoundTensor:
        lacking = [name for name in indices_of(pattern) if name not in indices]
        if lacking:
            raise BadRequest(
                f"{self.target}: {pattern} uses the index {lacking[0]}, which neither the name "
                "nor a stack(...) defines"
            )
        name = with_indices(pattern, indices)
        if name not in self.maker.hub:
            raise _Absent(name)
        number = self.names.setdefault(name, len(self.names))
        return BoundTensor(number, self.maker.hub[name])

    def _size(self, text: str, indices: Mapping[str, int]) -> int:
        try:
            return size_of(text, {**self.maker.sizes.values, **indices})
        except BadRequest as error:
            raise BadRequest(f"{self.target}: {error}") from None

    def _stack(self, expression: Operation, more: Mapping[str, int]) -> BoundOperation:
        index = expression.sizes[0]
        count = self.maker.sizes.counts.get(index)
        if count is None or count > MOST_TENSORS:
            raise BadRequest(
                f"{self.target}: stack needs an index of at most {MOST_TENSORS} values, but "
                f"{index} is not an index or has more"
            )
        parts = [
            self.bind(expression.tensors[0], {**more, **self.maker.sizes.at(index, number)})
            for number in range(count)
        ]
        if not parts:
            raise _Absent(f"any of index {index}")
        return BoundOperation("stack", tuple(parts), ())

    def _pad(self, expression: Operation, more: Mapping[str, int]) -> BoundOperation:
        part = self._parts(expression, more)[0]
        rows = view_of(part).shape[0]
        size = self._size(expression.sizes[0], {**self.indices, **more})
        there = self.maker.rows.get(self.target)
        if expression.word == "zeros":
            there = _rows_with_zeros(self.target, rows, there, size)
            self.maker.zeros.add(self.target)
        elif there is None:
            there = padded_rows(rows, max(1, size))
        else:
            _check_padding(self.target, rows, there, max(1, size), self.maker.sizes)
        if there != rows:
            self.maker.padded[self.target] = (there, rows)
        return BoundOperation("pad", (part,), (there,))


def _rows_with_zeros(name: str, rows: int, there: int | None, padded: int) -> int:
    """Return the number of rows that a padded tensor has in a checkpoint.

    `rows` is the number of rows on the Hub, and `padded` is the number with the program's padding.
    `there` is the number in the checkpoint, which must be `rows` or `padded`, or None if the
    checkpoint is not written yet.
    """
    if padded < rows:
        raise BadRequest(
            f"{name} has {rows} rows according to config.json, but only {padded} rows with the "
            "padding of the program; correct vocab_size"
        )
    if there not in (None, rows, padded):
        raise BadRequest(
            f"{name} has {there} rows, but should have {rows} (the vocabulary in config.json) "
            f"or {padded} (padded by the program); correct vocab_size, or give the config.json "
            "of this model"
        )
    return padded if there is None else there


def _check_padding(name: str, rows: int, there: int, multiple: int, sizes: MapSizes) -> None:
    """Check that `there` is the model's number of `rows`, or this number padded to `multiple`."""
    if there == rows:
        return
    tried = (1,) if sizes.values["is_multiple_given"] else _TENSOR_PARALLEL
    if there not in {padded_rows(rows, multiple * ranks) for ranks in tried}:
        if there < rows:
            raise BadRequest(
                f"{name} has {there} rows, but config.json has a vocabulary of {rows}: "
                f"{count_text(rows - there, 'row is', 'rows are')} missing; correct vocab_size, or "
                "give the config.json of this model"
            )
        raise BadRequest(
            f"{name} has {there} rows, but config.json has a vocabulary of {rows}: padding to a "
            f"multiple of {multiple} gives {padded_rows(rows, multiple)}, so "
            f"{count_text(there - rows, 'row is', 'rows are')} not padding; correct vocab_size, or "
            f"give --map-arg {MULTIPLE}=NUMBER"
        )
