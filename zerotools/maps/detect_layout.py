"""Compare the names and shapes of tensors with the layouts of a map, and choose the layout that
matches.

The names are compared as they are; `ops.weights.match_names_to_layout` also tries other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.core.nearest_word import nearest_of
from zerotools.maps.expression_views import Shape
from zerotools.maps.expressions import indices_of, with_indices
from zerotools.maps.map_file import HUB, FamilyMap
from zerotools.maps.map_variables import MapSizes
from zerotools.maps.match_stored_names import StoredNames, rows_of, stored_names
from zerotools.maps.model_layout import ModelLayout, layout_of_model

_MOST_NAMED = 3


@dataclass(frozen=True)
class FoundLayout:
    """A layout, and the result of its comparison with a checkpoint.

    Attributes:
        given: argument name -> value, as the user passed them for the layout.
        absent_counts: name of a count, such as the number of additional layers -> its value in
            config.json. The layout uses 0 instead, because the checkpoint lacks these layers.
    """

    layout: ModelLayout
    stored: StoredNames
    given: Mapping[str, Any] = field(default_factory=dict)
    absent_counts: Mapping[str, int] = field(default_factory=dict)


def match_layout(
    family: FamilyMap,
    name: str,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    held: Mapping[str, Shape],
) -> FoundLayout:
    """Compare the layout `name` with the tensors `held` of a checkpoint, which may be incomplete.
    `given` are the user's arguments for the map (`--map-arg`).

    Raises:
        BadRequest: for the reasons of `layout_of_model` and `stored_names`, or because the
            checkpoint has additional rows of the vocabulary that are not padding.
    """
    lacking = _absent_indices(family, name, MapSizes.of(family, config, given), held)
    given = {**given, **dict.fromkeys(lacking, 0)}
    layout = layout_of_model(family, name, config, given)
    if name != HUB:
        rows = rows_of(layout, held)
        layout = layout_of_model(family, name, config, given, rows)
    return FoundLayout(layout, stored_names(layout, held), given, lacking)


def _absent_indices(
    family: FamilyMap, name: str, sizes: MapSizes, held: Mapping[str, Shape]
) -> dict[str, int]:
    """Return {index: count in config.json} for each optional index that has no tensor in `held`,
    such as the index of additional layers.
    """
    layout = family.layouts.get(name)
    layout = family.layouts[layout.same_as] if layout is not None and layout.same_as else layout
    patterns = [*family.hub] if layout is None or layout.keep else []
    patterns += [*layout.tensors, *layout.also] if layout is not None else []
    found = {}
    for index in family.may_lack:
        firsts = (
            with_indices(pattern, {k: v for each in names for k, v in sizes.at(each, 0).items()})
            for pattern in patterns
            if index in (names := indices_of(pattern))
        )
        if sizes.counts[index] and not any(first in held for first in firsts):
            found[index] = sizes.counts[index]
    return found


def detect_layout(
    family: FamilyMap,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    held: Mapping[str, Shape],
) -> FoundLayout:
    """Return the layout of a checkpoint with the tensors `held`: the only layout for which all
    tensors are in `held`. `given` are the user's arguments for the map (`--map-arg`).

    Raises:
        BadRequest: tensors are missing for every layout (the message names those of the most
            similar layout), or several different layouts are complete.
    """
    tried: list[FoundLayout] = []
    refused: dict[str, BadRequest] = {}
    for name in (HUB, *family.layouts):
        try:
            tried.append(match_layout(family, name, config, given, held))
        except BadRequest as error:
            refused[name] = error
    fitting = [each for each in tried if not each.stored.faults]
    named = {each.layout.layout.same_as or each.layout.name for each in fitting}
    if fitting and all(_are_same(fitting[0], each) for each in fitting):
        return fitting[0]
    if fitting:
        raise BadRequest(
            f"the tensors fit the layouts {' and '.join(sorted(named))} of the map {family.name}; "
            "choose one with --map-from"
        )
    likely = [name for name in refused if _is_suggested(family, name, held)]
    if likely:
        raise refused[likely[0]]
    if not tried:
        raise next(iter(refused.values()))
    check_complete(min(tried, key=lambda each: each.stored.faults), family)
    raise AssertionError("internal error: a layout without faults was not chosen")


def _are_same(one: FoundLayout, other: FoundLayout) -> bool:
    """Return whether two layouts have the same tensors for this model, and store them equally in
    this checkpoint.

    For example, layouts that differ only in their experts are the same for a model without experts.
    """
    ours, theirs = (each.layout.layout.same_as or each.layout.name for each in (one, other))
    return ours == theirs or (
        one.layout.tensors == other.layout.tensors
        and one.layout.of_hub == other.layout.of_hub
        and one.stored.views == other.stored.views
    )


def _is_suggested(family: FamilyMap, name: str, held: Mapping[str, Shape]) -> bool:
    """Return whether `held` has a name without an index that is in the layout `name` but not in the
    Hub's layout.
    """
    if name == HUB:
        return False
    layout = family.layouts[name]
    tensors = family.layouts[layout.same_as or name].tensors
    plain = [each for each in tensors if "{" not in each]
    return any(each in held and each not in family.hub for each in plain)


def check_complete(found: FoundLayout, family: FamilyMap) -> None:
    """Check that a checkpoint has all tensors of its layout and no other tensors. `found` is the
    result of `match_layout`.

    Raises:
        BadRequest: a tensor is missing, is unknown or has a wrong shape; the message names the
            first of each kind.
    """
    layout, stored = found.layout, found.stored
    where = f"the layout {layout.name} of the map {family.name}"
    if stored.wrong:
        name, shape, expected = stored.wrong[0]
        raise BadRequest(
            f"{name} has shape {list(shape)}, but config.json gives it {list(expected)} in "
            f"{where}; give the config.json of this model"
        )
    said = []
    if stored.missing:
        said.append(
            f"it lacks {count_text(len(stored.missing), 'tensor')} ({_some(stored.missing)})"
        )
    if stored.unknown:
        near = nearest_of(stored.unknown[0], layout.tensors)
        said.append(
            f"it has {count_text(len(stored.unknown), 'tensor')} that the layout does not have "
            f"({_some(stored.unknown)}; the nearest name in the layout is {near})"
        )
    if said:
        raise BadRequest(
            f"the checkpoint does not fit {where}: {' and '.join(said)}; give the config.json of "
            "this "
            "model, or a map with these names with --map FILE"
        )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
