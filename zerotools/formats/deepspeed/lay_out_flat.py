"""The files of ZeRO stages 1 and 2 and of BF16_Optimizer for another number of ranks.

Written as DeepSpeed 0.19.8 writes them: masters without their trailing padding (with it where
BF16_Optimizer wrote them), rigid optimizer state with it, all of them zeros there.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` and `bf16_optimizer.py`: `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.flat import Vector
from zerotools.formats.deepspeed.flat_groups import FlatGroup
from zerotools.formats.deepspeed.geometry import Geometry, Held, held, partition_of
from zerotools.formats.deepspeed.order import (
    alignment_of,
    flat_order,
    is_round_robin,
    optimizer_order,
    paddings_of,
)
from zerotools.formats.deepspeed.output import Files, Output, carried_tensors, new_vector
from zerotools.formats.deepspeed.shards import BF16_OPTIMIZER, Shard, first_of, is_vector
from zerotools.io.torchzip.values import Ordered, StoredTensor

MASTERS = "single_partition_of_fp32_groups"
MAPPINGS = "param_slice_mappings"
PADDINGS = "group_paddings"
ALIGNMENTS = "param_alignment_paddings"


def lay_out_flat(column: Column, ranks: int, model_name: str, names: Sequence[str]) -> Files:
    """The model file `model_name`, and `names[r]` for the vectors of rank r.

    Raises:
        Unsupported: elastic state, or an order of parameters that the files do not explain.
        BadFile: the ranks' files disagree.
    """
    shard = first_of(column.shards)
    if not shard.is_rigid:
        raise Unsupported(
            f"{shard.file.path} has elastic optimizer state, which lacks the hyper-parameters; "
            "load it with DeepSpeed, and save it with elastic_checkpoint off"
        )
    round_robin = is_round_robin(column.model, shard)
    orders = [optimizer_order(group, round_robin=round_robin) for group in column.groups]
    geometries = _geometries(column, orders, ranks, round_robin=round_robin)
    contents = [held(geometry) for geometry in geometries]
    shapes = [Ordered(_renewed(column, i, each)) for i, each in enumerate(geometries)]
    tree = {**column.model.fields.tree, "dp_world_size": ranks, "param_shapes": shapes}
    model = Output.of(tree, column.model.file, ())
    plans = {model_name: model.plan({})}
    vectors: dict[tuple[int, str], list[Vector]] = {}
    outputs = []
    for rank, name in enumerate(names):
        made = _made(column.groups, geometries, shard, rank)
        held_here = [content[rank] for content in contents]
        output = Output.of(
            _tree(shard, geometries, orders, rank, made, held_here), shard.file, made.values()
        )
        gaps = {
            tensor.storage.key: _clipped(held_here[number], tensor.shape[0])
            for (number, _), tensor in made.items()
        }
        plans[name] = output.plan(gaps)
        outputs.append(output)
        for place, tensor in made.items():
            vectors.setdefault(place, []).append(output.vector(name, tensor))
    tensors = {
        Key(parameter, role): tensor
        for (number, role), of_ranks in vectors.items()
        for parameter, tensor in geometries[number].tensors(of_ranks[0].dtype, of_ranks)
    }
    files = {model_name: model, names[0]: outputs[0]}
    return Files(plans, tensors, carried_tensors(column, tensors, files))


def _renewed(column: Column, number: int, geometry: Geometry) -> dict[str, Any]:
    """The saved shapes of a group, as they were written, in the order of the new vector."""
    saved = column.model.fields.need("param_shapes", list)[number]
    return {name: saved[name] for name in geometry.shapes}


def _geometries(
    column: Column, orders: Sequence[Sequence[str]], ranks: int, *, round_robin: bool
) -> list[Geometry]:
    alignment = alignment_of(column.model, column.groups)
    made = []
    for group, order in zip(column.groups, orders, strict=True):
        names = flat_order(order, ranks, round_robin=round_robin)
        shapes = {name: group.shapes[name] for name in names}
        paddings = () if alignment is None else paddings_of(shapes, alignment)
        unpartitioned = Geometry(shapes, paddings, ranks, None)
        partition = partition_of(unpartitioned.total, ranks)
        made.append(Geometry(shapes, paddings, ranks, partition))
    return made


def _made(
    groups: Sequence[FlatGroup], geometries: Sequence[Geometry], shard: Shard, rank: int
) -> dict[tuple[int, str], StoredTensor]:
    """One rank's vectors by group and role."""
    made = {}
    for group, geometry in zip(groups, geometries, strict=True):
        group.check_roles()
        for role in group.roles:
            dtype = group.dtype(role)
            length = geometry.width
            if role == "param" and shard.kind != BF16_OPTIMIZER and PADDINGS in shard.fields:
                length -= _padding(geometry, rank)
            master = role == "param"
            key = f"new-{group.number}-{role}"
            made[group.number, role] = new_vector(key, dtype, length, requires_grad=master)
    return made


def _padding(geometry: Geometry, rank: int) -> int:
    """Elements of a rank's vector behind the end of the group."""
    return min(geometry.width, max(0, (rank + 1) * geometry.width - geometry.total))


def _clipped(content: Held, length: int) -> list[tuple[int, int]]:
    """The gaps of a vector that may be cut short."""
    return [(start, min(count, length - start)) for start, count in content.gaps if start < length]


def _tree(
    shard: Shard,
    geometries: Sequence[Geometry],
    orders: Sequence[Sequence[str]],
    rank: int,
    made: Mapping[tuple[int, str], StoredTensor],
    contents: Sequence[Held],
) -> dict[str, Any]:
    """The optimizer file of one rank: the source's, with vectors and layout replaced."""
    saved = shard.fields.tree
    ranks = geometries[0].ranks
    new = {
        **saved,
        "base_optimizer_state": _state(saved["base_optimizer_state"], made),
        MASTERS: [made[number, "param"] for number in range(len(geometries))],
    }
    if isinstance(saved.get("partition_count"), int):
        new["partition_count"] = ranks
    elif "partition_count" in saved:
        new["partition_count"] = [ranks] * len(geometries)
    if PADDINGS in saved:
        new[PADDINGS] = [_booked(shard, geometry, rank) for geometry in geometries]
    if ALIGNMENTS in saved:
        new[ALIGNMENTS] = [list(each.paddings) or [0] * len(each.shapes) for each in geometries]
    if MAPPINGS in saved:
        new[MAPPINGS] = [
            _mapping(content, order, _address(shard))
            for content, order in zip(contents, orders, strict=True)
        ]
    return {**shard.file.tree, "optimizer_state_dict": new}


def _booked(shard: Shard, geometry: Geometry, rank: int) -> int:
    """`group_paddings`: BF16_Optimizer books all of a group's on the last rank."""
    if shard.kind != BF16_OPTIMIZER:
        return _padding(geometry, rank)
    last = rank == geometry.ranks - 1
    return geometry.ranks * geometry.width - geometry.total if last else 0


def _state(saved: Any, made: Mapping[tuple[int, str], StoredTensor]) -> dict[str, Any]:
    """torch's state dict with the vectors replaced; numbers such as `step` stay."""
    state = {
        number: {
            role: made.get((number, role), value) if is_vector(value) else value
            for role, value in of_group.items()
        }
        for number, of_group in (saved.get("state") or {}).items()
    }
    return {**saved, "state": state}


_FRAGMENT = Opaque("deepspeed.utils.tensor_fragment", "fragment_address")


def _address(shard: Shard) -> Opaque:
    """The class that the source uses for a place in a vector; it moved between versions."""
    for mapping in shard.fields.tree[MAPPINGS]:
        for value in mapping.values() if isinstance(mapping, Mapping) else ():
            if isinstance(value, Opaque):
                return value
    return _FRAGMENT


def _mapping(content: Held, order: Sequence[str], address: Opaque) -> Ordered:
    """Places by name, in the optimizer's order, whatever the vector's is."""
    places = {
        name: Opaque(address.module, address.name, state={"numel": count, "start": start})
        for name, start, count in content.parts
    }
    return Ordered({name: places[name] for name in order if name in places})
