"""Convert a LoRA adapter to another layout, for example between Megatron's fused layers and PEFT's
layers.

The rows of B are moved in the same way as the rows of the weight. A is copied to every layer that
gets a part of the weight. No value is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from zerotools.core.adapter_tensor_names import PREFIX, A, AdapterTensor, B, adapter_tensors
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.nearest_word import nearest_of
from zerotools.io.distcp.item_chunks import archives_of
from zerotools.maps.expression_views import Shape
from zerotools.maps.map_file import HUB, FamilyMap
from zerotools.maps.model_layout import ModelLayout, layout_of_model
from zerotools.maps.views import TensorView, view_of_rows, whole_view
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.weights.adapter_config import choose_config, rank_and_alpha
from zerotools.ops.weights.rearrange_tensors import rearranged_checkpoint

MEGATRON = "megatron"
_WEIGHT = ".weight"
_OF_BRIDGE = {A: "adapter.linear_in", B: "adapter.linear_out"}
# The other keys, besides names, that list layers with an adapter; these layers differ then.
_CHOOSE_LAYERS = ("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters")


@dataclass(frozen=True)
class MappedAdapter:
    """An adapter in another layout.

    `layers` is layer with an adapter -> old layers that its adapter was made from. `leaves` are the
    last parts of layer names, such as q_proj, that only layers with an adapter have.
    """

    checkpoint: Checkpoint
    layers: Mapping[str, tuple[str, ...]]
    leaves: frozenset[str]
    notes: tuple[str, ...]


def saved_tensors(held: Checkpoint, tensors: Iterable[AdapterTensor]) -> Checkpoint:
    """Return a checkpoint with only the tensors of an adapter, under PEFT's names.

    Raises:
        BadRequest: two of the tensors would get the same name.
    """
    chosen: dict[Key, Tensor] = {}
    for each in tensors:
        key = Key(each.saved, "param")
        if key in chosen:
            raise BadRequest(
                f"{held.origin.path} has two tensors that PEFT saves as {each.saved}; choose one "
                "adapter with --adapter-name"
            )
        chosen[key] = held.tensors[each.key]
    return replace(held, tensors=chosen, aliases={}, model_sidecars={})


def mapped_adapter(
    checkpoint: Checkpoint,
    family: FamilyMap,
    to: str,
    source: str | None,
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> MappedAdapter:
    """Return the adapter in `checkpoint` in the layout `to`, for the model that `config` describes.
    `source` is its present layout; None: the names of its layers determine the layout.

    Raises:
        BadRequest: no layout has the adapter's layers; the config gives these layers other shapes;
            or several layers become one layer, but some of them have no adapter or have different
            matrices A.
        Unsupported: the adapter has other tensors than the two matrices of each layer, or a layout
            divides single rows.
    """
    path = checkpoint.origin.path
    held = _shapes(checkpoint)
    rows = {name: shape[0] for name, shape in held.items()}
    found = _layout_of(family, source, config, arguments, held, rows, path)
    target = layout_of_model(family, to, config, arguments)
    stages: list[Mapping[str, TensorView]] = []
    if found.name != target.name:
        stages += [] if found.name == HUB else [found.to_hub]
        stages += [] if target.name == HUB else [target.of_hub]
    layers: dict[str, tuple[str, ...]] = {name: (name,) for name in held}
    moved = _named(checkpoint)
    for views in stages:
        moved, origins = _moved(moved, views, layers)
        layers = {
            new: tuple(dict.fromkeys(first for old in olds for first in layers[old]))
            for new, olds in origins.items()
        }
    tensors = {
        Key(_spelled(key.name, to), key.role): tensor for key, tensor in moved.tensors.items()
    }
    note = f"the adapter has the layout {found.name} of the map {family.name}"
    return MappedAdapter(
        replace(
            checkpoint, tensors=tensors, aliases={}, native=None, archives=archives_of(checkpoint)
        ),
        {_module(new): tuple(map(_module, olds)) for new, olds in layers.items()},
        _full_leaves(target, layers),
        () if source else (note,),
    )


def mapped_config(tree: Mapping[str, Any], adapter: MappedAdapter, path: object) -> dict[str, Any]:
    """Return the adapter_config.json `tree`, changed for the adapter in its new layout.

    Raises:
        BadRequest: layers that become one layer have different ranks or scales.
    """
    numbers: dict[str, tuple[Any, Any]] = {}
    for new, olds in adapter.layers.items():
        found = {old: rank_and_alpha(tree, old) for old in olds}
        for one, other in pairwise(found):
            if found[one] != found[other]:
                raise BadRequest(
                    f"{path}: r and lora_alpha are {found[one]} for {one} and {found[other]} for "
                    f"{other}, but both become {new}, which has only one r and one lora_alpha"
                )
        numbers[new] = found[olds[0]]
    usual = tree.get("r"), tree.get("lora_alpha")
    if usual not in numbers.values():
        usual = next(iter(numbers.values()))
    leaves = dict.fromkeys(
        _leaf(module) if _leaf(module) in adapter.leaves else module for module in adapter.layers
    )
    return {
        **tree,
        **{key: None for key in _CHOOSE_LAYERS if tree.get(key)},
        "r": usual[0],
        "lora_alpha": usual[1],
        "rank_pattern": {n: r for n, (r, _) in numbers.items() if r != usual[0]},
        "alpha_pattern": {n: alpha for n, (_, alpha) in numbers.items() if alpha != usual[1]},
        "target_modules": sorted(leaves),
    }


def scale_note(source: Checkpoint, adapter: MappedAdapter) -> str:
    """Return a note on the scale that programs need to load the mapped adapter of `source`.

    Raises:
        BadRequest: the layers of the adapter have different ranks or scales.
    """
    path = source.origin.path
    try:
        tree, _ = choose_config(source, None, None, adapter_tensors(source.tensors, None, path))
    except BadRequest:
        return f"no file in or near {path} has the scale of the adapter (lora_alpha)"
    found = mapped_config(tree, adapter, path)
    if found["rank_pattern"] or found["alpha_pattern"]:
        raise BadRequest(
            f"{path}: layers of the adapter have different r or lora_alpha, but Megatron has one "
            f"of each; {_instead(path)}"
        )
    return f"load it with r (dim) {found['r']} and lora_alpha (alpha) {found['lora_alpha']}"


def _shapes(checkpoint: Checkpoint) -> dict[str, Shape]:
    """Return the shapes of the weights that have an adapter, keyed by name.

    Raises:
        Unsupported: the adapter has other tensors than the two matrices of each layer.
    """
    path = checkpoint.origin.path
    parts = {each.key: each for each in adapter_tensors(checkpoint.tensors, None, path)}
    sizes: dict[str, dict[str, Shape]] = {}
    for key, tensor in checkpoint.tensors.items():
        each = parts.get(key)
        if each is None or each.part not in (A, B) or len(tensor.shape) != 2:
            raise Unsupported(
                f"{path} has {key}, but only the matrices lora_A and lora_B of linear layers can "
                "have another layout; merge the adapter into its base model, and map the result"
            )
        if key.role != "param" or not each.saved.endswith(_WEIGHT):
            raise Unsupported(
                f"{path} has {key}, but only the weights of an adapter can have another layout; "
                "export them with zerotools consolidate --adapter-only"
            )
        sizes.setdefault(each.module + _WEIGHT, {})[each.part] = tensor.shape
    whole_ones = {name: found for name, found in sizes.items() if len(found) == 2}
    if lacking := next((name for name in sizes if name not in whole_ones), None):
        raise BadRequest(
            f"{path}: one of the two matrices of the adapter of {_module(lacking)} is missing"
        )
    return {name: (found[B][0], found[A][1]) for name, found in whole_ones.items()}


def _layout_of(
    family: FamilyMap,
    source: str | None,
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
    held: Mapping[str, Shape],
    rows: Mapping[str, int],
    path: object,
) -> ModelLayout:
    """Return the layout that has every weight in `held`, with the same shape."""
    tried: list[ModelLayout] = []
    for name in (HUB, *family.layouts) if source is None else (source,):
        with suppress(BadRequest):
            tried.append(layout_of_model(family, name, config, arguments, rows))
    if not tried:
        layout_of_model(family, source or HUB, config, arguments, rows)
    found = min(tried, key=lambda each: len(held.keys() - each.tensors.keys()))
    unknown = [name for name in held if name not in found.tensors]
    if unknown:
        near = nearest_of(unknown[0], found.tensors)
        raise BadRequest(
            f"{path} has an adapter of {_module(unknown[0])}, a layer that is in no layout of the "
            f"map {family.name} (the nearest is {_module(near)}); give the config.json of its "
            "model with --config-dir"
        )
    for name, shape in held.items():
        if found.tensors[name] != shape:
            raise BadRequest(
                f"{path}: the adapter of {_module(name)} is for a weight of shape {list(shape)}, "
                f"but config.json gives it {list(found.tensors[name])}; give the config.json of "
                "its model with --config-dir"
            )
    return found


def _named(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with each LoRA matrix named after its weight, with a suffix."""
    parts = adapter_tensors(checkpoint.tensors, None, checkpoint.origin.path)
    tensors = {
        _half(each.module + _WEIGHT, each.part): checkpoint.tensors[each.key] for each in parts
    }
    return replace(checkpoint, tensors=tensors)


def _moved(
    adapter: Checkpoint, views: Mapping[str, TensorView], layers: Iterable[str]
) -> tuple[Checkpoint, dict[str, tuple[str, ...]]]:
    """Return the LoRA matrices in the layout of `views`, and a dict from each weight of this layout
    to the old weights that it is made from."""
    held = set(layers)
    made: dict[str, TensorView] = {}
    origins: dict[str, tuple[str, ...]] = {}
    for name, view in views.items():
        if not held.intersection(view.names):
            continue
        _check_parts(adapter, name, view.names, held)
        down = adapter.tensors[_half(view.names[0], A)].shape
        first = _half(view.names[0], A).name
        made[_half(name, A).name] = TensorView(whole_view(0, down), (first,))
        halves = tuple(_half(part, B).name for part in view.names)
        made[_half(name, B).name] = TensorView(view_of_rows(name, view, down[0]), halves)
        origins[name] = view.names
    lost = held.difference(*origins.values()) if origins else held
    if lost:
        raise Unsupported(
            f"{adapter.origin.path}: the layout has no separate layer {_module(min(lost))}; merge "
            "the adapter into its base model, and map the result"
        )
    return rearranged_checkpoint(adapter, made), origins


def _check_parts(adapter: Checkpoint, name: str, parts: tuple[str, ...], held: set[str]) -> None:
    """Check that all layers that are fused into one have an adapter with the same matrix A."""
    path = adapter.origin.path
    lacking = next((part for part in parts if part not in held), None)
    own = ", ".join(_module(part) for part in parts if part in held)
    if lacking is not None:
        raise BadRequest(
            f"{path} has an adapter of {own}, but not of {_module(lacking)}, and all parts of "
            f"{_module(name)} must have adapters; {_instead(path)}"
        )
    first = adapter.tensors[_half(parts[0], A)]
    for part in parts[1:]:
        other = adapter.tensors[_half(part, A)]
        if other is not first and not _are_equal(adapter, parts[0], part):
            raise BadRequest(
                f"{path}: lora_A of {_module(parts[0])} and {_module(part)} differ, but both are "
                f"parts of {_module(name)}, which has one lora_A; {_instead(path)}"
            )


def _instead(path: object) -> str:
    return f"merge it with zerotools consolidate {path} MERGED --base BASE_DIR, and map MERGED"


def _are_equal(adapter: Checkpoint, one: str, other: str) -> bool:
    keys = [_half(each, A) for each in (one, other)]
    if adapter.tensors[keys[0]].shape != adapter.tensors[keys[1]].shape:
        return False
    arrays = load_tensors(adapter, {key: adapter.tensors[key].dtype for key in keys})
    return bool(np.array_equal(arrays[keys[0]], arrays[keys[1]]))


def _half(weight: str, part: str) -> Key:
    return Key(f"{_module(weight)}.{part}.weight", "param")


def _spelled(name: str, layout: str) -> str:
    """Return the name of a matrix in Megatron-Bridge's files for Megatron's layout, else
    in PEFT's."""
    stem, part, _ = name.rsplit(".", 2)
    return f"{stem}.{_OF_BRIDGE[part]}.weight" if layout == MEGATRON else PREFIX + name


def _full_leaves(target: ModelLayout, layers: Iterable[str]) -> frozenset[str]:
    """Return the last parts of layer names, such as q_proj, that only layers with an
    adapter have."""
    adapted = {*layers}
    others = {_leaf(_module(name)) for name in target.tensors if name not in adapted
              and name.endswith(_WEIGHT)}  # fmt: skip
    return frozenset(_leaf(_module(name)) for name in adapted) - others


def _module(weight: str) -> str:
    return weight.removesuffix(_WEIGHT)


def _leaf(module: str) -> str:
    return module.rpartition(".")[2]
