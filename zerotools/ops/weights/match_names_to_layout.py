"""Find names under which the tensors of a checkpoint match a layout of a map.

`maps.detect_layout` compares one set of names with the layouts. If the names in the files match no
layout, this module tries others: wrappers such as DDP, FSDP and torch.compile add words to names
(`module.`, `_orig_mod.`), and a tied weight may be stored under any of its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadRequest
from zerotools.io.huggingface.config_json import ties_embeddings
from zerotools.maps.detect_layout import FoundLayout, check_complete, detect_layout, match_layout
from zerotools.maps.expression_views import Shape
from zerotools.maps.hub_tensor_names import tied_names
from zerotools.maps.map_file import FamilyMap
from zerotools.ops.weights.select_and_rename import rename_tensors
from zerotools.ops.weights.tied_weights import held_by
from zerotools.ops.weights.unwrap_names import possible_namings

_WEIGHTS = ("param16", "buffer", "param")


@dataclass(frozen=True)
class LaidOutCheckpoint:
    """A checkpoint with its tensors under the names of its layout, and notes on these names.

    `own` maps a name of the layout to the name in the files, if it differs.
    """

    checkpoint: Checkpoint
    found: FoundLayout
    notes: tuple[str, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)

    def own_names(self, origins: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return `origins` with the names in the files in place of the layout's names."""
        return {new: tuple(self.own.get(old, old) for old in olds) for new, olds in origins.items()}


def shapes_of(checkpoint: Checkpoint) -> dict[str, Shape]:
    """Return the shapes of all weights and buffers, keyed by name."""
    held: dict[str, Shape] = {}
    for role in _WEIGHTS:
        held |= {k.name: t.shape for k, t in checkpoint.tensors.items() if k.role == role}
    return held


def named_as_layout(
    checkpoint: Checkpoint,
    family: FamilyMap,
    layout: str | None,
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> LaidOutCheckpoint:
    """Find the layout of the checkpoint. `layout` is the only one to try; None: all.

    Raises:
        BadRequest: the checkpoint has no layout of the map, under any of its names.
    """

    def look(which: Checkpoint) -> FoundLayout:
        held = shapes_of(which)
        if layout is None:
            return detect_layout(family, config, arguments, held)
        found = match_layout(family, layout, config, arguments, held)
        check_complete(found, family)
        return found

    try:
        return LaidOutCheckpoint(checkpoint, look(checkpoint))
    except BadRequest as refused:
        for other, notes in _renamed(checkpoint, family, config):
            with suppress(BadRequest):
                found = look(other)
                names = zip(checkpoint.tensors, other.tensors, strict=False)
                own = {new.name: old.name for old, new in names if new.name != old.name}
                return LaidOutCheckpoint(other, found, notes, own)
        raise refused from None


def _renamed(
    checkpoint: Checkpoint, family: FamilyMap, config: Mapping[str, Any]
) -> Iterator[tuple[Checkpoint, tuple[str, ...]]]:
    """Yield the checkpoint under each set of other names to try, with notes on the change."""
    names = [*(key.name for key in checkpoint.tensors), *checkpoint.aliases]
    for naming in possible_namings(dict.fromkeys(names)):
        notes: tuple[str, ...] = ()
        named = checkpoint
        if naming.removed:
            parts = " and ".join(naming.removed)
            notes = (f"removed {parts} from the names, to match the layouts of the map",)
            named = rename_tensors(checkpoint, naming.new_name)
            yield named, notes
        embedded = _embedded(named, family, config)
        if embedded is not named:
            yield embedded, notes
        if named.aliases:
            yield _untied(named), notes


def _embedded(checkpoint: Checkpoint, family: FamilyMap, config: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint with each tied tensor under the name that the layouts use for its
    bytes, unless another tensor has this name. Without tied embeddings in the config, it stays
    unchanged."""
    if not ties_embeddings(config):
        return checkpoint
    ties = dict(tied_names(family))
    for layout in family.layouts.values():
        ties |= layout.ties
    sources = set(ties.values())
    checkpoint = held_by(checkpoint, lambda name: name in sources)
    held = {key.name for key in checkpoint.tensors}
    new_names = {
        name: source
        for name, source in ties.items()
        if name in held and source not in held and source not in checkpoint.aliases
    }
    if not new_names:
        return checkpoint
    return rename_tensors(checkpoint, lambda name: new_names.get(name, name))


def _untied(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with tied weights repeated under each of their names."""
    tensors = dict(checkpoint.tensors)
    for alias, name in checkpoint.aliases.items():
        for role in _WEIGHTS:
            if Key(name, role) in checkpoint.tensors:
                tensors[Key(alias, role)] = checkpoint.tensors[Key(name, role)]
    return replace(checkpoint, tensors=tensors, aliases={})
