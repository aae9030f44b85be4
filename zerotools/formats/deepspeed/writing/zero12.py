"""The files of ZeRO stages 1 and 2 and of BF16_Optimizer for any number of ranks.

Written as DeepSpeed 0.19.8 writes them: masters without their trailing padding (with it where
BF16_Optimizer wrote them), rigid optimizer state with it, all of them zeros there.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` and `bf16_optimizer.py`: `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.dtypes import FLOAT32
from zerotools.formats.deepspeed.logical.logical_state import (
    BASE_STATE,
    STATE,
    LogicalState,
    StatePart,
    join_parts,
)
from zerotools.formats.deepspeed.partitioning.geometry import (
    FlatLayout,
    PartitionContents,
    partition_contents,
    partition_size,
)
from zerotools.formats.deepspeed.partitioning.parameter_order import flat_order, paddings_of
from zerotools.formats.deepspeed.schema.experts import ExpertPlacement
from zerotools.formats.deepspeed.schema.flat_buffer import FlatPartition
from zerotools.formats.deepspeed.schema.optim_states import BF16_OPTIMIZER
from zerotools.formats.deepspeed.writing.partitions import (
    BufferRole,
    BufferScalars,
    FlatBuffer,
    optimizer_state_of,
    placed_scalars,
    scalars_of,
)
from zerotools.formats.deepspeed.writing.pt_files import (
    FileDraft,
    OutputFiles,
    carried_tensors,
    new_partition,
)
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout
from zerotools.io.torchzip.pickle_values import Ordered, StoredTensor

MASTERS = "single_partition_of_fp32_groups"
MAPPINGS = "param_slice_mappings"
PADDINGS = "group_paddings"
ALIGNMENTS = "param_alignment_paddings"
ELASTIC_STEP = "base_optimizer_state_step"


def lay_out_zero12(
    blueprint: LogicalState, wanted: TargetLayout, model_name: str, names: Sequence[str]
) -> OutputFiles:
    """The model file `model_name`, and `names[r]` for the vectors of rank r.

    Raises:
        Unsupported: parts of a group that differ in what must be equal.
    """
    units = _units(blueprint, wanted)
    scalars = scalars_of(units)
    contents = [partition_contents(unit.geometry) for unit in units]
    model = _model_file(blueprint, units, wanted.ranks).at(model_name)
    plans = {model_name: model.plan({})}
    vectors: dict[BufferRole, list[FlatPartition]] = {}
    outputs = []
    for rank, name in enumerate(names):
        made = _made(blueprint, units, rank)
        here = [
            content[_part_of(unit, rank)] for unit, content in zip(units, contents, strict=True)
        ]
        tree = _tree(blueprint, units, scalars, rank, made, here)
        output = FileDraft.of(
            tree, blueprint.shard_file, made.values(), scalars.copies, blueprint.numbers
        ).at(name)
        gaps = {
            tensor.storage.key: _clipped(here[number], tensor.shape[0])
            for (number, _), tensor in made.items()
        }
        plans[name] = output.plan(gaps)
        outputs.append(output)
        for place, tensor in made.items():
            vectors.setdefault(place, []).append(output.vector(name, tensor))
    tensors = {
        Key(parameter, role): tensor
        for (number, role), of_ranks in vectors.items()
        for parameter, tensor in units[number].tensors(of_ranks)
    }
    weights = {key: model.placed(model_name, each) for key, each in blueprint.weights.items()}
    small = dict(placed_scalars(units, scalars, outputs, names))
    known = {**tensors, **weights, **small}
    carried = carried_tensors(blueprint.held, known, {model_name: model})
    return OutputFiles(plans, {**tensors, **weights}, {**carried, **small}, blueprint.sources)


def _units(blueprint: LogicalState, wanted: TargetLayout) -> list[FlatBuffer]:
    """One for each param group, in the order of the vector."""
    units = []
    for group in blueprint.groups:
        placement = ExpertPlacement(wanted.ranks, group.expert_ranks, wanted.data_first)
        ranks = placement.sharing
        names = flat_order(list(group.shapes), ranks, round_robin=wanted.round_robin)
        shapes = {name: group.shapes[name] for name in names}
        alignment = wanted.alignment
        paddings = () if alignment is None else paddings_of(shapes, alignment)
        total = FlatLayout(shapes, paddings, ranks, None).total
        geometry = FlatLayout(shapes, paddings, ranks, partition_size(total, ranks))
        part = join_parts(group.parts) if group.parts else _EMPTY
        units.append(FlatBuffer(geometry, part, placement, group.experts))
    return units


def _part_of(unit: FlatBuffer, rank: int) -> int:
    """Which part of a unit's vectors `rank` has: all ranks share them, or those of its experts."""
    return unit.placement.of(rank)[1]


_EMPTY = StatePart("", {}, {"param": FLOAT32}, None, {})


def _model_file(blueprint: LogicalState, units: Sequence[FlatBuffer], ranks: int) -> FileDraft:
    shapes = [
        Ordered({name: blueprint.shapes[name] for name in unit.geometry.shapes}) for unit in units
    ]
    tree = {**blueprint.model, "dp_world_size": ranks, "param_shapes": shapes}
    return FileDraft.of(tree, blueprint.model_file, blueprint.weights.values())


def _made(
    blueprint: LogicalState, units: Sequence[FlatBuffer], rank: int
) -> dict[BufferRole, StoredTensor]:
    """One rank's vectors by group and role."""
    is_cut = blueprint.kind != BF16_OPTIMIZER and PADDINGS in blueprint.inner
    made = {}
    for number, unit in enumerate(units):
        for role, dtype in unit.part.dtypes.items():
            length, master = unit.geometry.width, role == "param"
            if master and is_cut:
                length -= _padding(unit.geometry, _part_of(unit, rank))
            key = f"new-{number}-{role}"
            made[number, role] = new_partition(key, dtype, length, requires_grad=master)
    return made


def _padding(geometry: FlatLayout, part: int) -> int:
    """Elements of a part of the vector that are behind the end of the group."""
    return min(geometry.width, max(0, (part + 1) * geometry.width - geometry.total))


def _clipped(content: PartitionContents, length: int) -> list[tuple[int, int]]:
    """The gaps of a vector that may be cut short."""
    return [(start, min(count, length - start)) for start, count in content.gaps if start < length]


def _tree(
    blueprint: LogicalState,
    units: Sequence[FlatBuffer],
    scalars: BufferScalars,
    rank: int,
    made: Mapping[BufferRole, StoredTensor],
    contents: Sequence[PartitionContents],
) -> dict[str, Any]:
    """The optimizer file of one rank: the blueprint's, with vectors and layout replaced."""
    saved = blueprint.inner
    geometries = [unit.geometry for unit in units]
    base = saved.get(BASE_STATE)
    groups = [
        {**group.options, "params": [number]} for number, group in enumerate(blueprint.groups)
    ]
    state = {"state": optimizer_state_of(units, {**made, **scalars.found}), "param_groups": groups}
    new = {
        **{key: value for key, value in saved.items() if key != ELASTIC_STEP},
        BASE_STATE: {**(base if isinstance(base, dict) else {}), **state},
        MASTERS: [made[number, "param"] for number in range(len(units))],
    }
    if isinstance(saved.get("partition_count"), int):
        new["partition_count"] = units[0].placement.ranks
    elif "partition_count" in saved:
        new["partition_count"] = [unit.placement.sharing for unit in units]
    if PADDINGS in saved:
        new[PADDINGS] = [_booked(blueprint.kind, unit, rank) for unit in units]
    if ALIGNMENTS in saved or any(any(each.paddings) for each in geometries):
        new[ALIGNMENTS] = [list(each.paddings) or [0] * len(each.shapes) for each in geometries]
    if MAPPINGS in saved:
        address = _address(saved[MAPPINGS])
        new[MAPPINGS] = [
            _mapping(content, list(group.shapes), address)
            for content, group in zip(contents, blueprint.groups, strict=True)
        ]
    return {**blueprint.optimizer, STATE: new}


def _booked(kind: str, unit: FlatBuffer, rank: int) -> int:
    """`group_paddings`: BF16_Optimizer books all of a group's on the last rank."""
    geometry, part = unit.geometry, _part_of(unit, rank)
    if kind != BF16_OPTIMIZER:
        return _padding(geometry, part)
    last = part == geometry.ranks - 1
    return geometry.ranks * geometry.width - geometry.total if last else 0


_FRAGMENT = Opaque("deepspeed.utils.tensor_fragment", "fragment_address")


def _address(mappings: Any) -> Opaque:
    """The class that the source uses for a place in a vector; it moved between versions."""
    for mapping in mappings or ():
        for value in mapping.values() if isinstance(mapping, Mapping) else ():
            if isinstance(value, Opaque):
                return value
    return _FRAGMENT


def _mapping(content: PartitionContents, order: Sequence[str], address: Opaque) -> Ordered:
    """Places by name, in the optimizer's order, whatever the vector's is."""
    places = {
        name: Opaque(address.module, address.name, state={"numel": count, "start": start})
        for name, start, count in content.parts
    }
    return Ordered({name: places[name] for name in order if name in places})
