"""Prepare the weights of a damaged checkpoint for an export as `consolidate` does: merge adapters,
restore the layout of the Hub, rename and select. The weights may have holes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.adapter_tensor_names import (
    DEFAULT,
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    A,
    B,
    adapter_names,
    adapter_tensor,
    plain_name,
)
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.hub_layout import HubLayout
from zerotools.formats import FormatTable, format_of
from zerotools.formats.torch_optimizers import WEIGHT_ROLES
from zerotools.ops.salvage.find_holes import holes_of
from zerotools.ops.weights.adapted_model import plain_weights
from zerotools.ops.weights.lora_merge import AdapterRequest, MergedAdapters, merge_adapters
from zerotools.ops.weights.restore_hub_layout import hub_layout_of, on_hub_note, restore_hub_layout
from zerotools.ops.weights.select_and_rename import (
    MASTERS,
    choose_names,
    rename_tensors,
    weights_from,
)

_HALVES = (A, B, EMBEDDING_A, EMBEDDING_B, MAGNITUDE)


@dataclass(frozen=True)
class Weights:
    """The weights of a damaged checkpoint for an export. They may have holes.

    Attributes:
        masters: every weight, from its fp32 master if it has one.
        copies: the 16-bit copies of the weights that have a master.
        lost: the reasons why weights cannot be made from the remaining data, keyed by the weights'
            names.
        merged: the adapters that are merged.
        unselected: names that the user did not select.
    """

    masters: Checkpoint
    copies: Checkpoint
    lost: Mapping[str, str]
    notes: tuple[str, ...] = ()
    merged: MergedAdapters | None = None
    unselected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naming:
    """The names of an export. `new_name` returns the new name of a tensor. `is_selected` returns
    whether the tensor with this new name is written."""

    new_name: Callable[[str], str]
    is_selected: Callable[[str], bool]

    def named(self, weights: Checkpoint) -> Checkpoint:
        """Return the weights that are written, under their new names."""
        return choose_names(rename_tensors(weights, self.new_name), self.is_selected)

    def unselected(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the `names` that are not written, under their new names."""
        new = (self.new_name(name) for name in names)
        return tuple(name for name in new if not self.is_selected(name))


def weights_of(
    checkpoint: Checkpoint,
    naming: Naming,
    scratch: Path,
    table: FormatTable,
    *,
    request: AdapterRequest | None = None,
    lost_names: Collection[str] = (),
) -> Weights:
    """Return the weights of `checkpoint`, which may have holes. Adapters are merged with the
    options `request`, and merged weights will be computed in a directory next to `scratch`. The
    tensors `lost_names` are lost completely.

    Raises:
        BadFile: the job's record contradicts the tensors.
        BadRequest, Unsupported: the adapter of a LoRA run cannot be merged.
    """
    lost: dict[str, str] = {}
    checkpoint = _without_broken_adapters(checkpoint, table, lost, lost_names)
    merged = merge_adapters(checkpoint, scratch, table, request)
    checkpoint = checkpoint if merged is None else merged.checkpoint
    layout = hub_layout_of(checkpoint, table)
    checkpoint = _without_lost(checkpoint, layout, lost)
    masters = restore_hub_layout(
        _restorable(weights_from(checkpoint, MASTERS), layout, lost), layout
    )
    copies = restore_hub_layout(_restorable(_copies(checkpoint), layout, {}), layout)
    named = {naming.new_name(name): why for name, why in lost.items()}
    return Weights(
        naming.named(masters),
        naming.named(copies),
        {name: why for name, why in named.items() if naming.is_selected(name)},
        tuple(on_hub_note(layout)),
        merged,
        naming.unselected([*(key.name for key in masters.tensors), *masters.aliases, *lost]),
    )


def _copies(checkpoint: Checkpoint) -> Checkpoint:
    """Return the 16-bit copies of the weights that have a master."""
    tensors = {
        Key(key.name, "param"): tensor
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param16" and Key(key.name, "param") in checkpoint.tensors
    }
    return replace(checkpoint, tensors=tensors, aliases={})


def _without_broken_adapters(
    checkpoint: Checkpoint,
    table: FormatTable,
    lost: dict[str, str],
    lost_names: Collection[str],
) -> Checkpoint:
    """Return the checkpoint without broken modules, and add these modules' weights to `lost`. A
    module is broken if its weight or a matrix of its adapter is lost or has holes."""
    keys = [key for key in checkpoint.tensors if key.role in WEIGHT_ROLES]
    keys += [Key(name, "param") for name in lost_names]
    if not adapter_names(keys):
        return checkpoint
    parts: dict[str, set[str]] = {}
    for key in keys:
        if (each := adapter_tensor(key)) is not None and each.part in _HALVES:
            parts.setdefault(each.module, set()).add(each.part)
    broken = {module for module, there in parts.items() if not _is_pair(there)}
    holed = (k for k, t in checkpoint.tensors.items() if k.role == "param" and holes_of(k, t))
    names = [*(key.name for key in holed), *lost_names]
    broken |= {module for name in names if (module := _module(name)) in parts}
    for module in broken:
        lost[f"{module}.weight"] = (
            "the weight or its adapter has holes, and the merged weight needs both"
        )
    kept = {k: t for k, t in checkpoint.tensors.items() if _module(k.name) not in broken}
    checkpoint = replace(checkpoint, tensors=kept)
    if adapter_names(kept) or format_of(checkpoint, table).job_record(checkpoint) is not None:
        return checkpoint
    return plain_weights(checkpoint, DEFAULT)


def _is_pair(parts: Collection[str]) -> bool:
    return {A, B} <= {*parts} or {EMBEDDING_A, EMBEDDING_B} <= {*parts}


def _module(name: str) -> str:
    """Return the module of a weight, or of a matrix of its adapter."""
    each = adapter_tensor(Key(name, "param"))
    return plain_name(name).rpartition(".")[0] if each is None else each.module


def _without_lost(checkpoint: Checkpoint, layout: HubLayout, lost: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint without the base weights of lost adapters. Without the adapter they are
    not the trained weights."""
    names = set(lost) | {block.name for name in lost for block in layout.get(name, ())}
    kept = {key: tensor for key, tensor in checkpoint.tensors.items() if key.name not in names}
    return replace(checkpoint, tensors=kept)


def _restorable(weights: Checkpoint, layout: HubLayout, lost: dict[str, str]) -> Checkpoint:
    """Return the weights that can get the layout of the Hub. If that layout takes rows of a weight
    with holes, the weight is left out, and the weights made of its rows are added to `lost`."""
    kept: dict[Key, Tensor] = {}
    for key, tensor in weights.tensors.items():
        blocks = layout.get(key.name, ())
        by_rows = any(block.strides is not None for block in blocks)
        if by_rows and holes_of(key, tensor) is not None:
            lost |= {
                block.name: f"the weight is made of rows of {key.name}, which has holes"
                for block in blocks
            }
        else:
            kept[key] = tensor
    return replace(weights, tensors=kept)


def tied_to(weights: Checkpoint, name: str) -> Iterator[str]:
    """Yield `name`, then the other names of the same weight."""
    yield name
    holder = weights.aliases.get(name, name)
    if holder != name:
        yield holder
    yield from (a for a, other in weights.aliases.items() if other == holder and a != name)
