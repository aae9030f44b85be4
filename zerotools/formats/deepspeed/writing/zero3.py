"""The files of ZeRO stage 3 for any number of ranks: one model and one optimizer file for each.

The trees of all optimizer files are equal, and so are those of all model files but the first: ranks
differ in the bytes of their partitions and in which of them are padding, which is zeros.

Source: DeepSpeed `runtime/zero/stage3.py`: `_rigid_state_dict`; `runtime/engine.py`:
`_get_zero_frozen_param_attributes`, `_get_shared_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.target import FilePlan
from zerotools.formats.deepspeed.logical.logical_state import LogicalState
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout, partition_contents
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema import optimizer_tree as keys
from zerotools.formats.deepspeed.writing.partitions import (
    BufferRole,
    FlatBuffer,
    optimizer_state_of,
    param_shapes_of,
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
    logical: LogicalState, layout: TargetLayout, model_names: Sequence[str], names: Sequence[str]
) -> OutputFiles:
    """`model_names[r]` and `names[r]` for each rank.

    Raises:
        Unsupported: sub-groups that cannot be joined.
    """
    grouped = [sub_groups(group, layout.dp_size, layout.sub_group_size) for group in logical.groups]
    buffers = [buffer for group in grouped for buffer in group]
    new_partitions = {
        (number, role): new_partition(
            f"new-{number}-{role}",
            dtype,
            buffer.geometry.partition_numel,
            requires_grad=role == "param",
        )
        for number, buffer in enumerate(buffers)
        for role, dtype in buffer.state_part.dtypes.items()
    }
    scalars = scalars_of(buffers)
    tree = _tree(
        logical, grouped, layout.dp_size, new_partitions, {**new_partitions, **scalars.found}
    )
    draft = FileDraft.of(
        tree, logical.optim_file, new_partitions.values(), scalars.copies, logical.known_storages
    )
    outputs = [draft.at(name) for name in names]
    layouts = {
        tensor.storage.key: buffers[number].geometry
        for (number, _), tensor in new_partitions.items()
    }
    plans = _plans(outputs, names, layouts)
    tensors = {
        Key(name, role): tensor
        for (number, role), partition in new_partitions.items()
        for name, tensor in buffers[number].geometry.tensors(
            partition.dtype,
            [out.partition(file, partition) for out, file in zip(outputs, names, strict=True)],
        )
    }
    models, others = _model_files(logical, layout.dp_size, buffers, model_names, plans)
    tensors |= others
    repeated = _repeated(logical, models, model_names)
    small = dict(placed_scalars(buffers, scalars, outputs, names))
    carried = carried_tensors(
        logical.source_tensors, {**tensors, **small}, {model_names[0]: models[0]}
    )
    sources = {key: logical.weight_sources[of] for key, (of, _) in repeated.items()}
    tensors |= {key: tensor for key, (_, tensor) in repeated.items()}
    return OutputFiles(plans, tensors, {**carried, **small}, {**logical.weight_sources, **sources})


def _repeated(
    logical: LogicalState, models: Sequence[FileLayout], names: Sequence[str]
) -> dict[Key, tuple[Key, Tensor]]:
    """What the model files of all ranks but the first have whole too, and which tensor it is."""
    return {
        Key(key.name, f"{key.role}{REPEATED}{rank}"): (key, models[rank].placed(name, each))
        for rank, name in enumerate(names)
        if rank
        for key, each in logical.weights.items()
    }


def _plans(
    outputs: Sequence[FileLayout], names: Sequence[str], layouts: Mapping[str, FlatLayout]
) -> dict[str, FilePlan]:
    """The file of each rank, with the padding that its new partitions have."""
    gaps = {
        key: [rank.gaps for rank in partition_contents(geometry)]
        for key, geometry in layouts.items()
    }
    return {
        name: output.plan({key: of_ranks[rank] for key, of_ranks in gaps.items()})
        for rank, (name, output) in enumerate(zip(names, outputs, strict=True))
    }


def _tree(
    logical: LogicalState,
    grouped: Sequence[Sequence[FlatBuffer]],
    ranks: int,
    new_partitions: Mapping[BufferRole, StoredTensor],
    values: Mapping[BufferRole, StoredTensor],
) -> dict[str, Any]:
    """The optimizer file: the logical state's, with partitions and sub-groups replaced."""
    saved = logical.optimizer_state
    buffers = [buffer for group in grouped for buffer in group]
    groups, first = [], 0
    for group, own in zip(logical.groups, grouped, strict=True):
        groups.append(keys.param_group(group.options, range(first, first + len(own))))
        first += len(own)
    state = keys.torch_state(optimizer_state_of(buffers, values), groups)
    new = {
        **saved,
        keys.STATE_DICT: {**saved[keys.STATE_DICT], **state},
        keys.SUB_GROUPS: [new_partitions[number, "param"] for number in range(len(buffers))],
    }
    if keys.PARTITION_COUNT in saved:
        new[keys.PARTITION_COUNT] = ranks
    return {**logical.optimizer, keys.STATE_DICT: new}


def _model_files(
    logical: LogicalState,
    ranks: int,
    buffers: Sequence[FlatBuffer],
    names: Sequence[str],
    plans: dict[str, FilePlan],
) -> tuple[list[FileLayout], dict[Key, Tensor]]:
    """Adds the model files to `plans`; returns them, and what is filled in them: the partitions
    of frozen parameters in all, and in the first the weights of `logical`."""
    frozen = logical.frozen
    layouts = {
        name: FlatLayout({name: each.shape}, (), ranks, None) for name, each in frozen.items()
    }
    new_partitions = {
        name: new_partition(f"new-{name}", frozen[name].dtype, layout.partition_numel)
        for name, layout in layouts.items()
    }
    tree = {
        **logical.model,
        model_tree.DP_WORLD_SIZE: ranks,
        model_tree.PARAM_SHAPES: param_shapes_of(logical, buffers),
    }
    if new_partitions:
        tree[model_tree.FROZEN_FRAGMENTS] = Ordered(new_partitions)
    filled = [*new_partitions.values(), *logical.weights.values()]
    first = FileDraft.of(tree, logical.model_file, filled).at(names[0])
    outputs = [first]
    if ranks > 1:
        # Only the first rank of a run lists tied weights.
        tied = tree.get(model_tree.SHARED_PARAMS)
        others = {**tree, model_tree.SHARED_PARAMS: {}} if tied else tree
        draft = FileDraft.of(others, logical.model_file, filled)
        outputs += [draft.at(name) for name in names[1:]]
    plans |= _plans(
        outputs,
        names,
        {new_partitions[name].storage.key: layout for name, layout in layouts.items()},
    )
    tensors = {key: first.placed(names[0], each) for key, each in logical.weights.items()}
    for name, partition in new_partitions.items():
        places = [out.partition(file, partition) for out, file in zip(outputs, names, strict=True)]
        for _, tensor in layouts[name].tensors(partition.dtype, places):
            tensors[Key(name, "param")] = tensor
    return outputs, tensors
