"""The files of ZeRO stage 3 for another number of ranks: one model file and one shard for each.

The trees of all shards are equal, and so are those of all model files but the first: ranks differ
in the bytes of their vectors and in which of them are padding, which is zeros.

Source: DeepSpeed `runtime/zero/stage3.py`: `_rigid_state_dict`; `runtime/engine.py`:
`_get_zero_frozen_param_attributes`, `_get_shared_params`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import FilePlan, Key, Tensor
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.geometry import Geometry, held
from zerotools.formats.deepspeed.output import Files, Output, carried_tensors, new_vector
from zerotools.formats.deepspeed.shards import Shard, first_of
from zerotools.formats.deepspeed.sub_groups import SubGroup, regroup, renumbered
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.values import Ordered, Storage, StoredTensor


def lay_out_sliced(
    column: Column, ranks: int, model_names: Sequence[str], names: Sequence[str]
) -> Files:
    """`model_names[r]` and `names[r]` for each rank.

    Raises:
        Unsupported: sub-groups that the configuration does not explain, or that cannot be joined.
        BadFile: the ranks' files disagree.
    """
    shard = first_of(column.shards)
    grouped = regroup(column, ranks)
    subs = [sub for group in grouped for sub in group]
    made = {
        (number, role): new_vector(
            f"new-{number}-{role}",
            sub.source.dtype(role),
            sub.geometry.width,
            requires_grad=role == "param",
        )
        for number, sub in enumerate(subs)
        for role in sub.source.roles
    }
    scalars, copies = _scalars(subs, shard)
    tree = _tree(shard, grouped, {**made, **scalars})
    output = Output.of(tree, shard.file, made.values(), copies)
    layouts = {tensor.storage.key: subs[number].geometry for (number, _), tensor in made.items()}
    plans = _plans([output] * ranks, names, layouts)
    tensors = {
        Key(name, role): tensor
        for (number, role), vector in made.items()
        for name, tensor in subs[number].geometry.tensors(
            vector.dtype, [output.vector(file, vector) for file in names]
        )
    }
    model, frozen = _model_files(column, ranks, subs, model_names, plans)
    tensors |= frozen
    numbers = dict(_placed(subs, scalars, output, names[0]))
    carried = carried_tensors(column, {**tensors, **numbers}, {model_names[0]: model})
    return Files(plans, tensors, {**carried, **numbers})


def _scalars(
    subs: Sequence[SubGroup], shard: Shard
) -> tuple[dict[tuple[int, str], StoredTensor], dict[str, Storage]]:
    """0-d tensors such as `step`, by sub-group and role; and the storages that are copies.

    Where a sub-group was split, each part gets a tensor of its own: optimizers count in place.
    """
    found: dict[tuple[int, str], StoredTensor] = {}
    copies, used = {}, set()
    for number, sub in enumerate(subs):
        for role, value in shard.scalars[sub.source.number].items():
            stored = as_tensor(value)
            if stored is None or stored.shape != ():
                continue
            if stored.storage.key in used:
                key = f"copy-{number}-{role}"
                copies[key] = stored.storage
                stored = replace(stored, storage=replace(stored.storage, key=key))
            used.add(stored.storage.key)
            found[number, role] = stored
    return found, copies


def _placed(
    subs: Sequence[SubGroup],
    scalars: Mapping[tuple[int, str], StoredTensor],
    output: Output,
    file: str,
) -> Iterator[tuple[Key, Tensor]]:
    for (number, role), stored in scalars.items():
        tensor = output.placed(file, stored)
        for name in subs[number].geometry.shapes:
            yield Key(name, role), tensor


def _plans(
    outputs: Sequence[Output], names: Sequence[str], layouts: Mapping[str, Geometry]
) -> dict[str, FilePlan]:
    """The file of each rank, with the padding that its new vectors have."""
    gaps = {key: [rank.gaps for rank in held(geometry)] for key, geometry in layouts.items()}
    return {
        name: output.plan({key: of_ranks[rank] for key, of_ranks in gaps.items()})
        for rank, (name, output) in enumerate(zip(names, outputs, strict=True))
    }


def _tree(
    shard: Shard,
    grouped: Sequence[Sequence[SubGroup]],
    made: Mapping[tuple[int, str], StoredTensor],
) -> dict[str, Any]:
    """The optimizer file: the source's, with vectors and sub-groups replaced."""
    saved = shard.fields.tree
    inner = saved["optimizer_state_dict"]
    subs = [sub for group in grouped for sub in group]
    state = {
        number: {
            role: made.get((number, role), value)
            for role, value in inner["state"][sub.source.number].items()
        }
        for number, sub in enumerate(subs)
        if sub.source.number in (inner.get("state") or {})
    }
    groups = renumbered(inner, [len(group) for group in grouped])
    new = {
        **saved,
        "optimizer_state_dict": {**inner, "state": state, "param_groups": groups},
        "fp32_flat_groups": [made[number, "param"] for number in range(len(subs))],
    }
    if "partition_count" in saved:
        new["partition_count"] = subs[0].geometry.ranks
    return {**shard.file.tree, "optimizer_state_dict": new}


def _model_files(
    column: Column,
    ranks: int,
    subs: Sequence[SubGroup],
    names: Sequence[str],
    plans: dict[str, FilePlan],
) -> tuple[Output, dict[Key, Tensor]]:
    """Adds the model files to `plans`; returns the first and the frozen parameters in all."""
    model = column.model
    layouts = {
        name: Geometry({name: shape}, (), ranks, None)
        for name, shape in model.frozen_shapes.items()
    }
    made = {
        name: new_vector(f"new-{name}", column.tensors[Key(name, "param")].dtype, layout.width)
        for name, layout in layouts.items()
    }
    saved = model.fields.tree
    shapes = {name: shape for group in saved["param_shapes"] for name, shape in group.items()}
    tree = {
        **saved,
        "dp_world_size": ranks,
        "param_shapes": [
            Ordered({name: shapes[name] for name in sub.geometry.shapes}) for sub in subs
        ],
    }
    if made:
        tree["frozen_param_fragments"] = Ordered(made)
    first = Output.of(tree, model.file, made.values())
    outputs = [first]
    if ranks > 1:
        # Only the first rank of a run lists tied weights.
        others = {**tree, "shared_params": {}} if tree.get("shared_params") else tree
        outputs += [Output.of(others, model.file, made.values())] * (ranks - 1)
    plans |= _plans(
        outputs, names, {made[name].storage.key: layout for name, layout in layouts.items()}
    )
    frozen: dict[Key, Tensor] = {}
    for name, vector in made.items():
        places = [out.vector(file, vector) for out, file in zip(outputs, names, strict=True)]
        for _, tensor in layouts[name].tensors(vector.dtype, places):
            frozen[Key(name, "param")] = tensor
    return first, frozen
