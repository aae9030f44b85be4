"""Match the tensor names of a checkpoint on disk with the tensors of a layout.

A map has one name for each tensor of each layer. A checkpoint on disk may differ from the map:

- Other versions of the program write different names (`also`).
- Other versions store a tensor of the layout in parts along its first dimension, such as the
  experts of a layer (`also` with one more index).
- Megatron and MaxText stack the tensors of equal layers along a new dimension, under the name
  without the layer number.

Each of these differences is a view, which is applied before or after the views of the map.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from zerotools.core.errors import BadRequest
from zerotools.maps.expression_views import Shape
from zerotools.maps.expressions import indices_of, with_indices
from zerotools.maps.model_layout import ModelLayout
from zerotools.maps.views import TensorView, indexed_view, stacked_view, whole_view


@dataclass(frozen=True)
class StoredNames:
    """The result of matching the names in a checkpoint with a layout.

    Attributes:
        views: each tensor of the layout -> the view that makes it from the checkpoint's tensors.
        missing: names in the layout that the checkpoint does not have.
        unknown: names in the checkpoint that the layout does not have.
        ignored: names that, according to the layout, are not weights.
        copies: the names of second copies of tensors.
        wrong: for each tensor with a wrong shape: its name, its shape in the checkpoint, and its
            shape according to config.json.
    """

    views: Mapping[str, TensorView]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    ignored: tuple[str, ...]
    wrong: tuple[tuple[str, Shape, Shape], ...]
    copies: tuple[str, ...] = ()

    @property
    def faults(self) -> int:
        return len(self.missing) + len(self.unknown) + len(self.wrong)


def stored_names(layout: ModelLayout, held: Mapping[str, Shape]) -> StoredNames:
    """Match the names of the tensors `held` in a checkpoint with the tensors of the layout.

    Raises:
        BadRequest: the checkpoint has a tensor of the layout under two names.
    """
    ignored = {name for name in held if _is_ignored(layout, name)}
    found: dict[str, tuple[str, int | None]] = {}
    used: set[str] = set()
    for name in layout.tensors:
        for place in _places(layout, name):
            if place[0] not in held or place[0] in ignored:
                continue
            used.add(place[0])
            if name in found:
                raise BadRequest(
                    f"{name} of the layout {layout.name} is ambiguous, because the checkpoint has "
                    f"both {found[name][0]} and {place[0]}; rename one of the two"
                )
            found[name] = place
    counts = stacked_counts(layout)
    copies = tuple(name for name in layout.copies if name in held)
    used.update(copies)
    apart = _stored_in_parts(layout, {*held} - ignored, found)
    used.update(part for names in apart.values() for part in names)
    views: dict[str, TensorView] = {}
    wrong: list[tuple[str, Shape, Shape]] = []
    for name, (stored, number) in found.items():
        shape, own = held[stored], layout.tensors[name]
        dim = stacked_dim(layout, own, stored)
        along = (
            stacked_number(layout, layout.patterns[name][0]) if name in layout.patterns else None
        )
        count = counts.get(along or "", 0)
        expected = own if number is None else (*own[:dim], count, *own[dim:])
        if shape != expected:
            if all(stored != each for each, _, _ in wrong):
                wrong.append((stored, shape, expected))
            continue
        view = whole_view(0, shape)
        view = view if number is None else indexed_view(view, number, dim)
        views[name] = TensorView(view, (stored,))
    for name, parts in apart.items():
        own = layout.tensors[name][1:]
        wrong += [(part, held[part], own) for part in parts if held.get(part, own) != own]
        if all(held.get(part) == own for part in parts):
            pieces = [whole_view(number, own) for number in range(len(parts))]
            views[name] = TensorView(stacked_view(pieces), parts)
    wrong += [
        (name, held[name], layout.hub[layout.copies[name]])
        for name in copies
        if held[name] != layout.hub.get(layout.copies[name], held[name])
    ]
    missing = [name for name in layout.tensors if name not in found and name not in apart]
    missing += [part for parts in apart.values() for part in parts if part not in held]
    return StoredNames(
        views=views,
        missing=tuple(name for name in missing if name not in layout.optional),
        unknown=tuple(name for name in held if name not in used and name not in ignored),
        ignored=tuple(sorted(ignored)),
        wrong=tuple(wrong),
        copies=copies,
    )


def _stored_in_parts(
    layout: ModelLayout, held: Collection[str], found: Mapping[str, tuple[str, int | None]]
) -> dict[str, tuple[str, ...]]:
    """Return {name of a tensor in the layout: names of its parts} for the tensors that the
    checkpoint stores in parts along the first dimension. `held` are the names in the checkpoint,
    and `found` are the tensors that were matched before.
    """
    apart: dict[str, tuple[str, ...]] = {}
    for name, (pattern, indices) in layout.patterns.items():
        for other, meant in layout.layout.also.items():
            more = [index for index in indices_of(other) if index not in indices]
            if meant != pattern or not more:
                continue
            count = layout.tensors[name][0]
            parts = tuple(with_indices(other, {**indices, more[0]: n}) for n in range(count))
            first = next((part for part in parts if part in held), None)
            if first is None:
                continue
            if name in found:
                raise BadRequest(
                    f"{name} of the layout {layout.name} is ambiguous, because the checkpoint has "
                    f"both {found[name][0]} and {first}; rename one of the two"
                )
            apart[name] = parts
    return apart


def rows_of(layout: ModelLayout, held: Mapping[str, Shape]) -> dict[str, int]:
    """Return how many rows each tensor of the layout has in the checkpoint `held`, keyed by the
    tensor's name in the layout. These numbers show which tensors are padded.
    """
    found = {}
    for name in layout.tensors:
        shape = held.get(name)
        if shape:
            found[name] = shape[0]
    return found


def written_views(layout: ModelLayout) -> dict[str, TensorView]:
    """Return the view of each tensor as a writer of this layout saves it. If the layout stacks
    layers and all layers have the same tensors, one tensor contains all layers.
    """
    found = _stacks(layout)
    if found is None:
        return {
            name: TensorView(whole_view(0, shape), (name,))
            for name, shape in layout.tensors.items()
        }
    views = {}
    for new, names in found.items():
        shape = layout.tensors[names[0]]
        if len(names) == 1 and new == names[0]:
            views[new] = TensorView(whole_view(0, shape), (new,))
        else:
            parts = [whole_view(number, shape) for number in range(len(names))]
            dim = stacked_dim(layout, shape, new)
            views[new] = TensorView(stacked_view(parts, dim), tuple(names))
    return views


def stacked_dim(layout: ModelLayout, shape: Shape, name: str) -> int:
    """Return the dimension along which the layout stacks tensors of the shape `shape` into the
    tensor `name`."""
    if any(fnmatchcase(name, pattern) for pattern in layout.layout.stacked_first):
        return 0
    return min(layout.layout.stacked_dim, len(shape))


def _is_ignored(layout: ModelLayout, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in layout.layout.ignored)


def stacked_number(layout: ModelLayout, pattern: str) -> str | None:
    """Return the expression for the layer number in a name pattern, if the layout stacks tensors
    along this number, else None.
    """
    return next((text for text in layout.layout.stacked if f"{{{text}}}" in pattern), None)


def stacked_counts(layout: ModelLayout) -> dict[str, int]:
    """Return the number of layers in a stack, keyed by the expression for the layer's number."""
    counts: dict[str, int] = {}
    for pattern, indices in layout.patterns.values():
        along = stacked_number(layout, pattern)
        if along is not None:
            counts[along] = max(counts.get(along, 0), indices[along] + 1)
    return counts


def _stacks(layout: ModelLayout) -> dict[str, list[str]] | None:
    """Return the layers of each stack, keyed by the stack's name. Return None if the layout has no
    stacks, or if the layers of a stack have different tensors or shapes.
    """
    counts = stacked_counts(layout)
    if not counts:
        return None
    found: dict[str, list[str]] = {}
    for name, (pattern, indices) in layout.patterns.items():
        along = stacked_number(layout, pattern)
        new = name if along is None else _stacked_name(pattern, along, indices)
        stack = found.setdefault(new, [])
        if along is not None and indices[along] != len(stack):
            return None
        stack.append(name)
    for names in found.values():
        along = stacked_number(layout, layout.patterns[names[0]][0])
        if len({layout.tensors[name] for name in names}) > 1:
            return None
        if along is not None and len(names) != counts[along]:
            return None
    return found


def _places(layout: ModelLayout, name: str) -> Iterator[tuple[str, int | None]]:
    """Yield (name, index) for each name that a tensor may have in a checkpoint. For the name of a
    stacked tensor, the index is the position in the stack; for other names, it is None.
    """
    if name not in layout.patterns:
        yield name, None
        return
    pattern, indices = layout.patterns[name]
    also = [
        other
        for other, meant in layout.layout.also.items()
        if meant == pattern and set(indices_of(other)) <= set(indices)
    ]
    for each in (pattern, *also):
        yield with_indices(each, indices), None
        along = stacked_number(layout, each)
        if along is not None:
            yield _stacked_name(each, along, indices), indices[along]


def _stacked_name(pattern: str, along: str, indices: Mapping[str, int]) -> str:
    return with_indices(re.sub(rf"[._]\{{{re.escape(along)}\}}", "", pattern), indices)
