"""Find out which layout of a map a checkpoint has.

Wrappers such as DDP, FSDP and torch.compile add words to names (`module.`, `_orig_mod.`), and a
tied weight may be stored under any of its names. If the names of a checkpoint match no layout,
names without such words and other tied names are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

_WEIGHTS = ("param16", "buffer", "param")


@dataclass(frozen=True)
class LaidOutCheckpoint:
    """A checkpoint with its tensors under the names of its layout, and notes on these names.

    `own` maps these names to the names in the files, if they differ.
    """

    checkpoint: Checkpoint
    found: FoundLayout
    notes: tuple[str, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)

    def own_names(self, origins: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return `origins` with the old names replaced by the names in the files."""
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
    """Find the layout of the checkpoint. If `layout` is not None, only this layout is tried.

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
    """Yield the checkpoint again and again, each time with other names for its tensors to try, and
    with notes on the change.
    """
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
    """If config.json ties the embeddings, return the checkpoint with each tied tensor under the
    name that the layouts use for its bytes, unless another tensor has this name. Otherwise return
    the checkpoint unchanged.
    """
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


WRAPPERS = frozenset({
    "module", "_orig_mod", "_forward_module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module",
    "_fpw_module", "policy",
})  # fmt: skip
_MOST_LEADING = 3


@dataclass(frozen=True)
class Unwrapping:
    """A rule that renames tensors by removing parts of their names.

    `new_name` applies the rule to a name. `removed` are the removed parts, such as `module.`.
    """

    new_name: Callable[[str], str]
    removed: tuple[str, ...] = ()


def possible_namings(names: Iterable[str]) -> Iterator[Unwrapping]:
    """Yield the renaming rules to try. The first removes nothing, and each further rule removes
    more parts than the rule before.

    The second rule removes the parts that wrappers add, at any position in a name. The further
    rules also remove one to three parts that all names begin with.
    """
    held = list(names)
    yield Unwrapping(lambda name: name)
    found = [word for word in sorted(WRAPPERS) if any(word in _parts(name) for name in held)]
    bare = list(dict.fromkeys(map(_without_wrappers, held)))
    if found and len(bare) == len(held) and all(bare):
        yield Unwrapping(_without_wrappers, tuple(f"{word}." for word in found))
    shared = _shared(bare)
    for count in range(1, len(shared) + 1):
        leading = ".".join(shared[:count]) + "."
        if len(bare) == len(held):
            yield Unwrapping(_without(leading), (*(f"{word}." for word in found), leading))


def _parts(name: str) -> list[str]:
    return name.split(".")


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in _parts(name) if part not in WRAPPERS)


def _without(leading: str) -> Callable[[str], str]:
    return lambda name: _without_wrappers(name).removeprefix(leading)


def _shared(names: list[str]) -> list[str]:
    """Return the first parts of the names that all names have in common. The last part of a name is
    never included.
    """
    columns = zip(*(_parts(name)[:-1][:_MOST_LEADING] for name in names), strict=False)
    found: list[str] = []
    for column in columns:
        if len(set(column)) > 1:
            break
        found.append(column[0])
    return found
