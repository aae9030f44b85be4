"""Check the layouts that a weight map lists for one model, and find those that a checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.maps.detect_layout import match_layout
from zerotools.maps.expression_views import Shape
from zerotools.maps.map_file import HUB, FamilyMap
from zerotools.maps.match_stored_names import written_views
from zerotools.maps.model_layout import ModelLayout, layout_of_model
from zerotools.maps.shipped_maps import shipped_map, shipped_maps
from zerotools.ops.weights.convert_layout import chosen_map
from zerotools.ops.weights.match_names_to_layout import shapes_of


@dataclass(frozen=True)
class LayoutCheck:
    """The check of one layout of a weight map.

    Attributes:
        tensors: the number of tensors of the layout.
        refusal: the reason if the layout does not apply to the model.
        missing: the names that the checkpoint lacks. `missing`, `unknown`, `ignored` and `wrong`
            are empty if no checkpoint was checked.
        unknown: the names that the layout does not have.
        ignored: the names of values that are not weights.
        wrong: the names with wrong shapes, with the shape in the checkpoint and that in
            config.json.
    """

    name: str
    tensors: int = 0
    refusal: str | None = None
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    wrong: tuple[tuple[str, Shape, Shape], ...] = ()

    @property
    def faults(self) -> int:
        """The number of tensors that do not match."""
        return len(self.missing) + len(self.unknown) + len(self.wrong)

    @property
    def fits(self) -> bool:
        """True if the layout applies to the model and the checkpoint matches it completely."""
        return self.refusal is None and not self.faults


@dataclass(frozen=True)
class MadeTensor:
    """A tensor of a layout. `parts` are the names and shapes of the Hub's tensors that it is made
    from."""

    name: str
    shape: Shape
    parts: tuple[tuple[str, Shape], ...]


def named_map(name: str | None, config: Mapping[str, Any] | None) -> FamilyMap:
    """Return the weight map called `name`, or in the file `name`; None: the map for the model of
    `config`.

    Raises:
        BadRequest: the map does not exist, or neither a map nor a model is given.
        Unsupported: there is no map for the model.
    """
    if name is None:
        if config is None:
            raise BadRequest("name a map or its file, or a model with --config FILE")
        return chosen_map(None, config)
    if name not in shipped_maps() and not Path(name).exists() and name != Path(name).stem:
        raise BadRequest(f"the file {name} does not exist; correct the path")
    if name in shipped_maps() or not Path(name).exists():
        return shipped_map(name)
    if is_no_map(name):
        raise BadRequest(
            f"{name} is not a map (a TOML file); name the map first, then the checkpoint"
        )
    return chosen_map(Path(name), config or {})


def is_no_map(name: str) -> bool:
    """Return whether `name` is certainly not a map: a URL, a directory, or a file that is
    not TOML."""
    if name in shipped_maps():
        return False
    return "://" in name or (Path(name).exists() and Path(name).suffix != ".toml")


def made_tensors(layout: ModelLayout) -> list[MadeTensor]:
    """Return each tensor of the layout as it is saved to a file."""
    found = []
    for name, view in written_views(layout).items():
        parts = dict.fromkeys(
            part
            for each in view.names
            for part in (layout.of_hub[each].names if each in layout.of_hub else (each,))
        )
        shapes = tuple((part, layout.hub[part]) for part in parts)
        found.append(MadeTensor(name, view.view.shape, shapes))
    return found


def check_layouts(
    family: FamilyMap,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    checkpoint: Checkpoint | None,
) -> list[LayoutCheck]:
    """Check every layout of the weight map for one model: it must have each weight of the model,
    and the conversion to it must be invertible. With a `checkpoint`, also compare its tensors with
    the layout."""
    return [_check(family, name, config, given, checkpoint) for name in (HUB, *family.layouts)]


def nearest_of_all(checks: Sequence[LayoutCheck]) -> LayoutCheck | None:
    """Return the layout that fits the checkpoint best. Return None if a layout fits completely, or
    if none applies to the model."""
    if any(each.fits for each in checks):
        return None
    tried = [each for each in checks if each.refusal is None]
    return min(tried, key=lambda each: each.faults, default=None)


def _check(
    family: FamilyMap,
    name: str,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    checkpoint: Checkpoint | None,
) -> LayoutCheck:
    try:
        if checkpoint is None:
            layout = layout_of_model(family, name, config, given)
            return LayoutCheck(name, len(written_views(layout)))
        found = match_layout(family, name, config, given, shapes_of(checkpoint))
    except BadRequest as error:
        return LayoutCheck(name, refusal=str(error))
    stored = found.stored
    return LayoutCheck(
        name,
        len(found.layout.tensors),
        missing=stored.missing,
        unknown=stored.unknown,
        ignored=stored.ignored,
        wrong=stored.wrong,
    )
