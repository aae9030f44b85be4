"""Plan the files of ZeRO stage 3 for any number of ranks: one model file and one optimizer file for
each rank.

All optimizer files have equal trees. All model files except the first have equal trees too. The
files of two ranks differ in the bytes of their partitions, and in the position of the padding
(zeros). With AutoEP, the trees of each rank also name its experts.

Source: DeepSpeed `runtime/zero/stage3.py`: `_rigid_state_dict`; `runtime/engine.py`:
`_get_zero_frozen_param_attributes`, `_get_shared_params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.target import FilePlan
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout, partition_contents
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.expert_parallel import model_tree_on, partition_groups_on
from zerotools.formats.deepspeed.writing.flat_buffers import (
    BufferRole,
    FlatBuffer,
    optimizer_state_of,
    param_shapes_of,
    placed_scalars,
    scalars_of,
)
from zerotools.formats.deepspeed.writing.plan_pt_file import (
    REPEATED,
    FileDraft,
    FileLayout,
    OutputFiles,
    carried_tensors,
    new_partition,
)
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout, sub_groups
from zerotools.io.torchzip.pickle_values import Ordered, StoredTensor


def lay_out_zero3(
    logical: LogicalState, layout: TargetLayout, model_names: Sequence[str], names: Sequence[str]
) -> OutputFiles:
    """Plan the model file `model_names[r]` and the optimizer file `names[r]` of each rank r.

    Raises:
        Unsupported: a value that must be equal differs between sub-groups that are joined.
    """
    grouped = [
        sub_groups(group, layout.placement_of(group), layout.sub_group_size)
        for group in logical.groups
    ]
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
    drafts = [
        FileDraft.of(
            _on_rank(tree, layout, buffers, rank),
            logical.optim_file,
            new_partitions.values(),
            scalars.copies,
            logical.known_storages,
        )
        for rank in _differing_ranks(layout)
    ]
    outputs = [drafts[rank % len(drafts)].at(name) for rank, name in enumerate(names)]
    gaps = {
        tensor.storage.key: _gaps(buffers[number]) for (number, _), tensor in new_partitions.items()
    }
    plans = _plans(outputs, names, gaps)
    tensors = {
        Key(name, role): tensor
        for (number, role), partition in new_partitions.items()
        for name, tensor in buffers[number].tensors(
            role, [out.partition(file, partition) for out, file in zip(outputs, names, strict=True)]
        )
    }
    models, others = _model_files(logical, layout, buffers, model_names, plans)
    tensors |= others
    repeated = _repeated(logical, models, model_names)
    small = dict(placed_scalars(buffers, scalars, outputs, names))
    carried = carried_tensors(
        logical.source_tensors, {**tensors, **small}, {model_names[0]: models[0]}
    )
    sources = {key: logical.weight_sources[of] for key, (of, _) in repeated.items()}
    tensors |= {key: tensor for key, (_, tensor) in repeated.items()}
    return OutputFiles(plans, tensors, {**carried, **small}, {**logical.weight_sources, **sources})


def _differing_ranks(layout: TargetLayout) -> range:
    """Return one rank for each different tree. Only AutoEP makes the trees of the ranks differ, so
    without it only rank 0 is returned.
    """
    return range(layout.dp_size if layout.autoep_size is not None else 1)


def _on_rank(
    tree: dict[str, Any], layout: TargetLayout, buffers: Sequence[FlatBuffer], rank: int
) -> dict[str, Any]:
    if layout.autoep_size is None:
        return tree
    placements = [buffer.expert_placement for buffer in buffers]
    listed = partition_groups_on(placements, [buffer.is_stacked for buffer in buffers], rank)
    return {
        **tree,
        state_dict_keys.STATE_DICT: {
            **tree[state_dict_keys.STATE_DICT],
            state_dict_keys.ZERO3_GROUPS: listed,
        },
    }


def _gaps(buffer: FlatBuffer) -> list[list[tuple[int, int]]]:
    parts = partition_contents(buffer.geometry)
    return [
        list(parts[buffer.part_of(rank)].gaps) for rank in range(buffer.expert_placement.dp_size)
    ]


def _repeated(
    logical: LogicalState, models: Sequence[FileLayout], names: Sequence[str]
) -> dict[Key, tuple[Key, Tensor]]:
    """Return the tensors of the first rank's model file that the model files of all other ranks
    repeat.
    """
    return {
        Key(key.name, f"{key.role}{REPEATED}{rank}"): (key, models[rank].placed(name, each))
        for rank, name in enumerate(names)
        if rank
        for key, each in logical.weights.items()
    }


def _plans(
    outputs: Sequence[FileLayout],
    names: Sequence[str],
    gaps: Mapping[str, Sequence[Sequence[tuple[int, int]]]],
) -> dict[str, FilePlan]:
    """Return the plan of each rank's file, with zeros as the padding of the new partitions."""
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
    """Return the tree of the optimizer files. It is the source's tree with new partitions, and with
    new values where they depend on the sub-groups.
    """
    saved = logical.optimizer_state
    buffers = [buffer for group in grouped for buffer in group]
    groups, first = [], 0
    for group, own in zip(logical.groups, grouped, strict=True):
        groups.append(state_dict_keys.param_group(group.options, range(first, first + len(own))))
        first += len(own)
    state = state_dict_keys.torch_state(optimizer_state_of(buffers, values), groups)
    new = {
        **saved,
        state_dict_keys.STATE_DICT: {**saved[state_dict_keys.STATE_DICT], **state},
        state_dict_keys.SUB_GROUPS: [
            new_partitions[number, "param"] for number in range(len(buffers))
        ],
    }
    if state_dict_keys.PARTITION_COUNT in saved:
        new[state_dict_keys.PARTITION_COUNT] = ranks
    return {**logical.optimizer, state_dict_keys.STATE_DICT: new}


def _model_tree(tree: dict[str, Any], layout: TargetLayout, rank: int) -> dict[str, Any]:
    """Return `tree`, the content of the model file, with only the experts of rank `rank`."""
    placement = layout.autoep_placement
    return tree if placement is None else model_tree_on(tree, placement, rank)


def _model_files(
    logical: LogicalState,
    layout: TargetLayout,
    buffers: Sequence[FlatBuffer],
    names: Sequence[str],
    plans: dict[str, FilePlan],
) -> tuple[list[FileLayout], dict[Key, Tensor]]:
    """Add the model files to `plans`. Return the layouts of these files, and the tensors in them
    that are filled later.

    These tensors are the partitions of frozen parameters in all files, and the weights of `logical`
    in the first file.
    """
    frozen, ranks = logical.frozen, layout.dp_size
    layouts = {
        name: FlatLayout({name: each.shape}, (), ranks, None) for name, each in frozen.items()
    }
    new_partitions = {
        name: new_partition(f"new-{name}", frozen[name].dtype, geometry.partition_numel)
        for name, geometry in layouts.items()
    }
    tree = {
        **logical.model,
        state_dict_keys.DP_WORLD_SIZE: ranks,
        state_dict_keys.PARAM_SHAPES: param_shapes_of(logical, buffers),
    }
    if new_partitions:
        tree[state_dict_keys.FROZEN_FRAGMENTS] = Ordered(new_partitions)
    filled = [*new_partitions.values(), *logical.weights.values()]
    first = FileDraft.of(_model_tree(tree, layout, 0), logical.model_file, filled).at(names[0])
    outputs = [first]
    if ranks > 1:
        # Only the first rank's model file lists tied weights.
        tied = tree.get(state_dict_keys.SHARED_PARAMS)
        others = {**tree, state_dict_keys.SHARED_PARAMS: {}} if tied else tree
        drafts = [
            FileDraft.of(_model_tree(others, layout, rank), logical.model_file, filled)
            for rank in _differing_ranks(layout)
        ]
        outputs += [drafts[r % len(drafts)].at(names[r]) for r in range(1, ranks)]
    gaps = {
        new_partitions[name].storage.key: [part.gaps for part in partition_contents(geometry)]
        for name, geometry in layouts.items()
    }
    plans |= _plans(outputs, names, gaps)
    tensors = {key: first.placed(names[0], each) for key, each in logical.weights.items()}
    for name, partition in new_partitions.items():
        places = [out.partition(file, partition) for out, file in zip(outputs, names, strict=True)]
        for _, tensor in layouts[name].tensors(partition.dtype, places):
            tensors[Key(name, "param")] = tensor
    return outputs, tensors
