"""Stage 3: the parameters that share a sub-group, which depend on the number of ranks.

A param group is one sub-group if the partitions of one rank are no more than `sub_group_size`
elements together; otherwise parameters are added one by one, and a sub-group is closed as soon as
it has that many.

The example of `partitioning/flat_layout.py`, w (2 x 3 elements), b (3) and v (5) on two ranks, has
partitions of 3, 2 and 3 elements. With `sub_group_size` 6 or more it is one sub-group. With 5, w
and b fill the first:

    sub-group 0    w0 w1 w2 b0 b1 | w3 w4 w5 b2 ..
    sub-group 1    v0 v1 v2 | v3 v4 ..

On three ranks the partitions are 2, 1 and 2 elements, 5 together, so that the same size makes one
sub-group:

    sub-group 0    w0 w1 b0 v0 v1 | w2 w3 b1 v2 v3 | w4 w5 b2 v4 ..

In the files, a sub-group is one tensor of `fp32_flat_groups`, one entry of the optimizer's state
and one mapping of `param_shapes`; a param group lists the numbers of its sub-groups.

Source: DeepSpeed `runtime/zero/stage3.py`: `_create_fp16_partitions_with_defragmentation`,
`_create_fp16_sub_groups`.
"""

from __future__ import annotations

from math import prod

from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.logical.logical_state import LogicalGroup, LogicalState, join_parts
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout
from zerotools.formats.deepspeed.schema.ds_config import (
    DEFAULT_SUB_GROUP_SIZE,
    SUB_GROUP_SIZE,
    number_of,
)
from zerotools.formats.deepspeed.schema.experts import ExpertPlacement
from zerotools.formats.deepspeed.schema.model_states import Shapes
from zerotools.formats.deepspeed.writing.partitions import FlatBuffer


def size_of(logical: LogicalState) -> int:
    """Return `sub_group_size` as the run's configuration has it."""
    return number_of(logical.zero, SUB_GROUP_SIZE, DEFAULT_SUB_GROUP_SIZE)


def check_explained(logical: LogicalState, ranks: int) -> None:
    """Check that the sub-groups of `ranks` ranks match the configuration.

    Raises:
        Unsupported: they do not, so the resuming run's sub-groups are unknown.
    """
    limit = size_of(logical)
    for group in logical.groups:
        # Each sub-group has a part of every expert-parallel rank, all cut alike.
        ep_size = logical.autoep_size or 1 if group.is_stacked else 1
        if split_sub_groups(group.shapes_on(ep_size), ranks // ep_size, limit) != [
            dict(part.shapes) for part in group.parts[::ep_size]
        ]:
            file = logical.model_file.path if logical.model_file else "the source"
            raise Unsupported(
                f"{file}: ds_config has {SUB_GROUP_SIZE} = {limit}, but the sub-groups have other "
                "sizes; pass the value of the resuming run with --sub-group-size"
            )


def sub_groups(group: LogicalGroup, placement: ExpertPlacement, limit: int) -> list[FlatBuffer]:
    """Return the sub-groups of one param group, which ranks share by `placement`.

    Raises:
        Unsupported: merged parts differ in a value that must be equal.
    """
    ranks, own = placement.expert_dp_size, group.shapes_on(placement.ep_size)
    return [
        FlatBuffer(
            FlatLayout(shapes, (), ranks, None),
            join_parts([part for part in group.parts if not part.shapes.keys().isdisjoint(shapes)]),
            placement,
            is_stacked=group.is_stacked,
        )
        for shapes in split_sub_groups(own, ranks, limit)
    ]


def split_sub_groups(shapes: Shapes, ranks: int, limit: int) -> list[Shapes]:
    """Return the sub-groups of one param group; empty if it has no parameters."""
    widths = {name: -(-prod(shape) // ranks) for name, shape in shapes.items()}
    if not shapes or limit >= sum(widths.values()):
        return [shapes] if shapes else []
    parts: list[Shapes] = []
    current, filled = {}, 0
    for name, shape in shapes.items():
        current[name] = shape
        filled += widths[name]
        if filled >= limit:
            parts.append(current)
            current, filled = {}, 0
    return [*parts, current] if current else parts
