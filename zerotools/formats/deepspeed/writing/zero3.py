"""The files of ZeRO stage 3 for any number of ranks: one model file and one shard for each.

The trees of all shards are equal, and so are those of all model files but the first: ranks differ
in the bytes of their vectors and in which of them are padding, which is zeros.

Source: DeepSpeed `runtime/zero/stage3.py`: `_rigid_state_dict`; `runtime/engine.py`:
`_get_zero_frozen_param_attributes`, `_get_shared_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import FilePlan, Key, Tensor
from zerotools.formats.deepspeed.logical.logical_state import STATE, LogicalState
from zerotools.formats.deepspeed.partitioning.geometry import FlatLayout, partition_contents
from zerotools.formats.deepspeed.writing.partitions import (
    BufferRole,
    FlatBuffer,
    optimizer_state_of,
    placed_scalars,
    scalars_of,
)
from zerotools.formats.deepspeed.writing.pt_files import (
    REPEATED,
    FileDraft,
    FileLayout,
    OutputFiles,
    carried_tensors,
    new_partition,
)
from zerotools.formats.deepspeed.writing.sub_groups import sub_groups
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout
from zerotools.io.torchzip.pickle_values import Ordered, StoredTensor


def lay_out_zero3(
    blueprint: LogicalState, wanted: TargetLayout, model_names: Sequence[str], names: Sequence[str]
) -> OutputFiles:
    """`model_names[r]` and `names[r]` for each rank.

    Raises:
        Unsupported: sub-groups that cannot be joined.
    """
    grouped = [sub_groups(group, wanted.ranks, wanted.sub_group_size) for group in blueprint.groups]
    units = [unit for group in grouped for unit in group]
    made = {
        (number, role): new_partition(
            f"new-{number}-{role}", dtype, unit.geometry.width, requires_grad=role == "param"
        )
        for number, unit in enumerate(units)
        for role, dtype in unit.part.dtypes.items()
    }
    scalars = scalars_of(units)
    tree = _tree(blueprint, grouped, wanted.ranks, made, {**made, **scalars.found})
    draft = FileDraft.of(
        tree, blueprint.shard_file, made.values(), scalars.copies, blueprint.numbers
    )
    outputs = [draft.at(name) for name in names]
    layouts = {tensor.storage.key: units[number].geometry for (number, _), tensor in made.items()}
    plans = _plans(outputs, names, layouts)
    tensors = {
        Key(name, role): tensor
        for (number, role), vector in made.items()
        for name, tensor in units[number].geometry.tensors(
            vector.dtype,
            [out.vector(file, vector) for out, file in zip(outputs, names, strict=True)],
        )
    }
    models, others = _model_files(blueprint, wanted.ranks, units, model_names, plans)
    tensors |= others
    repeated = _repeated(blueprint, models, model_names)
    small = dict(placed_scalars(units, scalars, outputs, names))
    carried = carried_tensors(blueprint.held, {**tensors, **small}, {model_names[0]: models[0]})
    sources = {key: blueprint.sources[of] for key, (of, _) in repeated.items()}
    tensors |= {key: tensor for key, (_, tensor) in repeated.items()}
    return OutputFiles(plans, tensors, {**carried, **small}, {**blueprint.sources, **sources})


def _repeated(
    blueprint: LogicalState, models: Sequence[FileLayout], names: Sequence[str]
) -> dict[Key, tuple[Key, Tensor]]:
    """What the model files of all ranks but the first have whole too, and which tensor it is."""
    return {
        Key(key.name, f"{key.role}{REPEATED}{rank}"): (key, models[rank].placed(name, each))
        for rank, name in enumerate(names)
        if rank
        for key, each in blueprint.weights.items()
    }


def _plans(
    outputs: Sequence[FileLayout], names: Sequence[str], layouts: Mapping[str, FlatLayout]
) -> dict[str, FilePlan]:
    """The file of each rank, with the padding that its new vectors have."""
    gaps = {
        key: [rank.gaps for rank in partition_contents(geometry)]
        for key, geometry in layouts.items()
    }
    return {
        name: output.plan({key: of_ranks[rank] for key, of_ranks in gaps.items()})
        for rank, (name, output) in enumerate(zip(names, outputs, strict=True))
    }


def _tree(
    blueprint: LogicalState,
    grouped: Sequence[Sequence[FlatBuffer]],
    ranks: int,
    made: Mapping[BufferRole, StoredTensor],
    values: Mapping[BufferRole, StoredTensor],
) -> dict[str, Any]:
    """The optimizer file: the blueprint's, with vectors and sub-groups replaced."""
    saved = blueprint.inner
    units = [unit for group in grouped for unit in group]
    groups, first = [], 0
    for group, own in zip(blueprint.groups, grouped, strict=True):
        groups.append({**group.options, "params": list(range(first, first + len(own)))})
        first += len(own)
    new = {
        **saved,
        STATE: {**saved[STATE], "state": optimizer_state_of(units, values), "param_groups": groups},
        "fp32_flat_groups": [made[number, "param"] for number in range(len(units))],
    }
    if "partition_count" in saved:
        new["partition_count"] = ranks
    return {**blueprint.optimizer, STATE: new}


def _model_files(
    blueprint: LogicalState,
    ranks: int,
    units: Sequence[FlatBuffer],
    names: Sequence[str],
    plans: dict[str, FilePlan],
) -> tuple[list[FileLayout], dict[Key, Tensor]]:
    """Adds the model files to `plans`; returns them, and what is filled in them: the slices of
    frozen parameters in all, and in the first what the blueprint has to be filled."""
    frozen = blueprint.frozen
    layouts = {
        name: FlatLayout({name: each.shape}, (), ranks, None) for name, each in frozen.items()
    }
    made = {
        name: new_partition(f"new-{name}", frozen[name].dtype, layout.width)
        for name, layout in layouts.items()
    }
    tree = {
        **blueprint.model,
        "dp_world_size": ranks,
        "param_shapes": [
            Ordered({name: blueprint.shapes[name] for name in unit.geometry.shapes})
            for unit in units
        ],
    }
    if made:
        tree["frozen_param_fragments"] = Ordered(made)
    filled = [*made.values(), *blueprint.weights.values()]
    first = FileDraft.of(tree, blueprint.model_file, filled).at(names[0])
    outputs = [first]
    if ranks > 1:
        # Only the first rank of a run lists tied weights.
        others = {**tree, "shared_params": {}} if tree.get("shared_params") else tree
        draft = FileDraft.of(others, blueprint.model_file, filled)
        outputs += [draft.at(name) for name in names[1:]]
    plans |= _plans(
        outputs, names, {made[name].storage.key: layout for name, layout in layouts.items()}
    )
    tensors = {key: first.placed(names[0], each) for key, each in blueprint.weights.items()}
    for name, vector in made.items():
        places = [out.vector(file, vector) for out, file in zip(outputs, names, strict=True)]
        for _, tensor in layouts[name].tensors(vector.dtype, places):
            tensors[Key(name, "param")] = tensor
    return outputs, tensors
