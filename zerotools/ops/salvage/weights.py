"""The weights of a checkpoint under the names of an export, as `consolidate` has them: adapters
added, as the Hub has them, renamed and selected. Weights with holes go the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.hub_layout import HubLayout
from zerotools.formats import FormatTable, format_of
from zerotools.ops.salvage.holes import holes_of
from zerotools.ops.weights.base_weights import BASE, A, B
from zerotools.ops.weights.hub_names import hub_layout_of, on_hub_note, restored
from zerotools.ops.weights.lora_merge import MergedAdapters, merge_adapters
from zerotools.ops.weights.rewrite import rename
from zerotools.ops.weights.selection import MASTERS, choose_names, weights_from


@dataclass(frozen=True)
class Weights:
    """`masters` has every weight, from its master where there is one, and with the holes that it
    has; `copies` the 16-bit weights beside masters. `lost` are names of weights that cannot be made
    of what is left, with the reason; `merged` are the adapters that are added."""

    masters: Checkpoint
    copies: Checkpoint
    lost: Mapping[str, str]
    notes: tuple[str, ...] = ()
    merged: MergedAdapters | None = None


@dataclass(frozen=True)
class Naming:
    """The names of an export: `new_name` of the checkpoint's, and which of those are written."""

    new_name: Callable[[str], str]
    is_selected: Callable[[str], bool]

    def named(self, weights: Checkpoint) -> Checkpoint:
        """The weights that are written, under their new names."""
        return choose_names(rename(weights, self.new_name), self.is_selected)


def weights_of(
    checkpoint: Checkpoint, naming: Naming, scratch: Path, table: FormatTable
) -> Weights:
    """The weights of `checkpoint`, of which some may have holes. `scratch` is for sums with
    adapters.

    Raises:
        BadFile: the job's record contradicts the tensors.
    """
    lost: dict[str, str] = {}
    checkpoint = _without_broken_adapters(checkpoint, table, lost)
    record = format_of(checkpoint, table).job_record(checkpoint)
    is_merged = record is not None and record.lora is not None
    merged = merge_adapters(checkpoint, scratch, table) if is_merged else None
    checkpoint = checkpoint if merged is None else merged.checkpoint
    layout = hub_layout_of(checkpoint, table)
    checkpoint = _without_lost(checkpoint, layout, lost)
    masters = restored(_restorable(weights_from(checkpoint, MASTERS), layout, lost), layout)
    copies = restored(_restorable(_copies(checkpoint), layout, {}), layout)
    named = {naming.new_name(name): why for name, why in lost.items()}
    return Weights(
        naming.named(masters),
        naming.named(copies),
        {name: why for name, why in named.items() if naming.is_selected(name)},
        tuple(on_hub_note(layout)),
        merged,
    )


def _copies(checkpoint: Checkpoint) -> Checkpoint:
    """The 16-bit weights of those that have a master."""
    tensors = {
        Key(key.name, "param"): tensor
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param16" and Key(key.name, "param") in checkpoint.tensors
    }
    return replace(checkpoint, tensors=tensors, aliases={})


def _without_broken_adapters(
    checkpoint: Checkpoint, table: FormatTable, lost: dict[str, str]
) -> Checkpoint:
    """Without weights to which an adapter is added, where one of the three has holes."""
    record = format_of(checkpoint, table).job_record(checkpoint)
    if record is None or record.lora is None:
        return checkpoint
    broken = {
        _stem(key.name)
        for key, tensor in checkpoint.tensors.items()
        if key.role == "param" and _stem(key.name) and holes_of(key, tensor) is not None
    }
    for stem in broken:
        lost[f"{stem}.weight"] = "it or its adapter has holes, and the sum needs both"
    kept = {k: t for k, t in checkpoint.tensors.items() if _stem(k.name) not in broken}
    return replace(checkpoint, tensors=kept)


def _without_lost(checkpoint: Checkpoint, layout: HubLayout, lost: Mapping[str, str]) -> Checkpoint:
    """Without weights of a base model whose adapter is lost: they would look like trained ones."""
    names = set(lost) | {block.name for name in lost for block in layout.get(name, ())}
    kept = {key: tensor for key, tensor in checkpoint.tensors.items() if key.name not in names}
    return replace(checkpoint, tensors=kept)


def _stem(name: str) -> str | None:
    """What the names of a weight and its two adapters begin with; None of other tensors."""
    return next((name.partition(mark)[0] for mark in (BASE, A, B) if mark in name), None)


def _restorable(weights: Checkpoint, layout: HubLayout, lost: dict[str, str]) -> Checkpoint:
    """Without weights that have holes and are taken apart row by row."""
    kept: dict[Key, Tensor] = {}
    for key, tensor in weights.tensors.items():
        blocks = layout.get(key.name, ())
        by_rows = any(block.strides is not None for block in blocks)
        if by_rows and holes_of(key, tensor) is not None:
            lost |= {
                block.name: f"it is made of rows of {key.name}, which has holes" for block in blocks
            }
        else:
            kept[key] = tensor
    return replace(weights, tensors=kept)


def tied_to(weights: Checkpoint, name: str) -> Iterator[str]:
    """The name, and those that stand for the same weight."""
    yield name
    holder = weights.aliases.get(name, name)
    if holder != name:
        yield holder
    yield from (a for a, other in weights.aliases.items() if other == holder and a != name)
