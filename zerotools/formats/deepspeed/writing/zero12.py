"""Plan the files of ZeRO stages 1 and 2 and of BF16_Optimizer for any number of ranks.

The files are as DeepSpeed 0.19.8 writes them. Masters have no trailing padding, except in files of
BF16_Optimizer. Rigid optimizer state has trailing padding of zeros.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` and `bf16_optimizer.py`: `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.dtypes import FLOAT32
from zerotools.formats.deepspeed.mp_rank_logical_state import (
    LogicalGroup,
    LogicalState,
    StatePart,
    join_parts,
)
from zerotools.formats.deepspeed.partitioning.flat_groups import flat_order, paddings_of
from zerotools.formats.deepspeed.partitioning.flat_layout import (
    FlatLayout,
    PartitionContents,
    WholeParameters,
    is_of_muon,
    partition_contents,
    partition_size,
)
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.expert_parallel import model_tree_on
from zerotools.formats.deepspeed.schema.optim_states import BF16_OPTIMIZER, FlatPartition
from zerotools.formats.deepspeed.writing.flat_buffers import (
    BufferRole,
    BufferScalars,
    FlatBuffer,
    optimizer_state_of,
    param_shapes_of,
    placed_scalars,
    scalars_of,
)
from zerotools.formats.deepspeed.writing.plan_pt_file import (
    FileDraft,
    OutputFiles,
    carried_tensors,
    new_partition,
)
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout
from zerotools.io.torchzip.pickle_values import Ordered, StoredTensor


def lay_out_zero12(
    logical: LogicalState, layout: TargetLayout, model_name: str, names: Sequence[str]
) -> OutputFiles:
    """Plan the model file `model_name` and, for each rank r, the optimizer file `names[r]`, which
    has this rank's partitions.

    Raises:
        Unsupported: a value that must be equal differs between the parts of a param group.
    """
    buffers = _buffers(logical, layout)
    scalars = scalars_of(buffers)
    contents = [partition_contents(buffer.geometry) for buffer in buffers]
    model = _model_file(logical, buffers, layout).at(model_name)
    plans = {model_name: model.plan({})}
    partitions: dict[BufferRole, list[FlatPartition | None]] = {
        (number, role): [None] * len(names)
        for number, buffer in enumerate(buffers)
        for role in buffer.state_part.dtypes
    }
    outputs = []
    for rank, name in enumerate(names):
        new_partitions = _new_partitions(logical, buffers, rank)
        here = [
            content[buffer.part_of(rank)] for buffer, content in zip(buffers, contents, strict=True)
        ]
        tree = _tree(logical, buffers, scalars, rank, new_partitions, here)
        output = FileDraft.of(
            tree,
            logical.optim_file,
            new_partitions.values(),
            scalars.copies,
            logical.known_storages,
        ).at(name)
        gaps = {
            tensor.storage.key: _clipped(here[number], tensor.shape[0])
            for (number, role), tensor in new_partitions.items()
            if role not in buffers[number].whole_roles
        }
        plans[name] = output.plan(gaps)
        outputs.append(output)
        for place, tensor in new_partitions.items():
            partitions[place][rank] = output.partition(name, tensor)
    tensors = {
        Key(parameter, role): tensor
        for (number, role), of_ranks in partitions.items()
        for parameter, tensor in buffers[number].tensors(role, of_ranks)
    }
    weights = {key: model.placed(model_name, each) for key, each in logical.weights.items()}
    small = dict(placed_scalars(buffers, scalars, outputs, names))
    known = {**tensors, **weights, **small}
    carried = carried_tensors(logical.source_tensors, known, {model_name: model})
    return OutputFiles(plans, {**tensors, **weights}, {**carried, **small}, logical.weight_sources)


def _buffers(logical: LogicalState, layout: TargetLayout) -> list[FlatBuffer]:
    buffers = []
    for group in logical.groups:
        placement = layout.placement_of(group)
        ranks, own = placement.expert_dp_size, group.shapes_on(placement.ep_size)
        names = flat_order(list(own), ranks, round_robin=layout.round_robin)
        shapes = {name: own[name] for name in names}
        alignment = layout.alignment
        paddings = () if alignment is None else paddings_of(shapes, alignment)
        total = FlatLayout(shapes, paddings, ranks, None).total
        geometry = FlatLayout(shapes, paddings, ranks, partition_size(total, ranks))
        part = join_parts(group.parts) if group.parts else _EMPTY
        whole = _whole_roles(layout, group, part)
        buffers.append(
            FlatBuffer(geometry, part, placement, group.experts, whole, group.is_stacked)
        )
    return buffers


def _whole_roles(layout: TargetLayout, group: LogicalGroup, part: StatePart) -> frozenset[str]:
    """Return the roles for which each rank stores whole parameters instead of a partition.

    The roles are the momenta of Muon. If a momentum has an unexpected length, DeepSpeed discards it
    without an error.
    """
    if layout.is_offloaded:
        return frozenset()
    return frozenset(role for role in part.dtypes if is_of_muon(role, group.options))


_EMPTY = StatePart("", {}, {"param": FLOAT32}, None, {})


def _model_file(
    logical: LogicalState, buffers: Sequence[FlatBuffer], layout: TargetLayout
) -> FileDraft:
    tree = {
        **logical.model,
        state_dict_keys.DP_WORLD_SIZE: layout.dp_size,
        state_dict_keys.PARAM_SHAPES: param_shapes_of(logical, buffers),
    }
    if (placement := layout.autoep_placement) is not None:
        tree = model_tree_on(tree, placement, 0)
    return FileDraft.of(tree, logical.model_file, logical.weights.values())


def _new_partitions(
    logical: LogicalState, buffers: Sequence[FlatBuffer], rank: int
) -> dict[BufferRole, StoredTensor]:
    """Return the new partitions of one rank, keyed by (number of the group, role)."""
    is_cut = (
        logical.kind != BF16_OPTIMIZER and state_dict_keys.GROUP_PADDINGS in logical.optimizer_state
    )
    new_partitions = {}
    for number, buffer in enumerate(buffers):
        for role, dtype in buffer.state_part.dtypes.items():
            length, master = buffer.geometry.partition_numel, role == "param"
            if role in buffer.whole_roles:
                length = WholeParameters(buffer.geometry).numel(buffer.part_of(rank))
                if not length:
                    continue
            if master and is_cut:
                length -= _padding(buffer.geometry, buffer.part_of(rank))
            key = f"new-{number}-{role}"
            new_partitions[number, role] = new_partition(key, dtype, length, requires_grad=master)
    return new_partitions


def _padding(geometry: FlatLayout, part: int) -> int:
    """Return the number of elements in partition `part` that lie after the end of the group."""
    return min(
        geometry.partition_numel, max(0, (part + 1) * geometry.partition_numel - geometry.total)
    )


def _clipped(content: PartitionContents, length: int) -> list[tuple[int, int]]:
    """Return the gaps (elements that belong to no parameter) in the first `length` elements of a
    partition, as (start, count).
    """
    return [(start, min(count, length - start)) for start, count in content.gaps if start < length]


def _tree(
    logical: LogicalState,
    buffers: Sequence[FlatBuffer],
    scalars: BufferScalars,
    rank: int,
    new_partitions: Mapping[BufferRole, StoredTensor],
    contents: Sequence[PartitionContents],
) -> dict[str, Any]:
    """Return the tree of one rank's optimizer file. It is the source's tree with new partitions,
    and with new values where they depend on the layout.
    """
    saved = logical.optimizer_state
    geometries = [buffer.geometry for buffer in buffers]
    base = saved.get(state_dict_keys.BASE_STATE)
    groups = [
        state_dict_keys.param_group(group.options, [n]) for n, group in enumerate(logical.groups)
    ]
    state = optimizer_state_of(buffers, {**new_partitions, **scalars.found})
    for number, entries in state.items():
        for role in buffers[number].whole_roles:
            if (number, role) not in new_partitions:
                del entries[role]
    new = {
        **{key: value for key, value in saved.items() if key != state_dict_keys.ELASTIC_STEP},
        state_dict_keys.BASE_STATE: {
            **(base if isinstance(base, dict) else {}),
            **state_dict_keys.torch_state(state, groups),
        },
        state_dict_keys.PARTITIONS: [
            new_partitions[number, "param"] for number in range(len(buffers))
        ],
    }
    if isinstance(saved.get(state_dict_keys.PARTITION_COUNT), int):
        new[state_dict_keys.PARTITION_COUNT] = buffers[0].expert_placement.dp_size
    elif state_dict_keys.PARTITION_COUNT in saved:
        new[state_dict_keys.PARTITION_COUNT] = [
            each.expert_placement.expert_dp_size for each in buffers
        ]
    if state_dict_keys.GROUP_PADDINGS in saved:
        new[state_dict_keys.GROUP_PADDINGS] = [
            _group_paddings(logical.kind, buffer, rank) for buffer in buffers
        ]
    if state_dict_keys.ALIGNMENT_PADDINGS in saved or any(
        any(each.paddings) for each in geometries
    ):
        new[state_dict_keys.ALIGNMENT_PADDINGS] = [
            list(each.paddings) or [0] * len(each.shapes) for each in geometries
        ]
    if state_dict_keys.SLICE_MAPPINGS in saved:
        kind = state_dict_keys.fragment_class(state_dict_keys.slice_mappings(saved))
        new[state_dict_keys.SLICE_MAPPINGS] = [
            _mapping(content, list(group.shapes), kind)
            for content, group in zip(contents, logical.groups, strict=True)
        ]
    return {**logical.optimizer, state_dict_keys.STATE_DICT: new}


def _group_paddings(kind: str, buffer: FlatBuffer, rank: int) -> int:
    """Return `group_paddings`. BF16_Optimizer records all padding of a group on the last rank."""
    geometry, part = buffer.geometry, buffer.part_of(rank)
    if kind != BF16_OPTIMIZER:
        return _padding(geometry, part)
    last = part == geometry.dp_size - 1
    return geometry.dp_size * geometry.partition_numel - geometry.total if last else 0


def _mapping(content: PartitionContents, order: Sequence[str], kind: Opaque) -> Ordered:
    """Return the positions of the parameters in a partition, keyed by name in the optimizer's
    order, which may differ from the order in the buffer.
    """
    places = {name: (start, count) for name, start, count in content.parts}
    return state_dict_keys.slice_mapping(
        kind, ((name, *places[name]) for name in order if name in places)
    )
