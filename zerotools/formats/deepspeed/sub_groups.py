"""Stage 3: which parameters share a sub-group, which follows from the number of ranks.

A param group is one sub-group if its slices are no more than `sub_group_size` elements together;
otherwise parameters are added one by one, and a sub-group is closed as soon as it has that many.

Source: DeepSpeed `runtime/zero/stage3.py`: `_create_fp16_partitions_with_defragmentation`,
`_create_fp16_sub_groups`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.flat_groups import FlatGroup
from zerotools.formats.deepspeed.geometry import Geometry
from zerotools.formats.deepspeed.model import ModelStates, Shapes
from zerotools.formats.deepspeed.order import zero_config
from zerotools.formats.deepspeed.shards import Shard, first_of
from zerotools.io.torchzip.tensors import as_tensor

SUB_GROUP_SIZE = "sub_group_size"
DEFAULT_SIZE = 1_000_000_000


@dataclass(frozen=True)
class SubGroup:
    """A sub-group of the output: `source` is one of those that its parameters come from, all of
    which have the same kinds of state and equal numbers."""

    geometry: Geometry
    source: FlatGroup


def size_of(model: ModelStates) -> int:
    """`sub_group_size` as the run had it."""
    value = zero_config(model).get(SUB_GROUP_SIZE)
    return int(value) if isinstance(value, int | float) else DEFAULT_SIZE


def members(column: Column) -> list[list[int]]:
    """The sub-groups of each of the optimizer's param groups.

    Raises:
        BadFile: a sub-group is in none, or in several.
    """
    shard = first_of(column.shards)
    found = [list(group.get("params", ())) for group in shard.param_groups or ()]
    if sorted(number for numbers in found for number in numbers) != [*range(len(column.groups))]:
        raise BadFile(
            f"{shard.file.path} has {len(column.groups)} sub-groups, and its param_groups list "
            f"{found}"
        )
    return found


def regroup(column: Column, ranks: int) -> list[list[SubGroup]]:
    """The sub-groups of each param group for `ranks` ranks.

    Raises:
        Unsupported: the source's are not cut as its `sub_group_size` says, or differ in what must
            be equal to be put together.
    """
    limit, made = size_of(column.model), []
    for numbers in members(column):
        groups = [column.groups[number] for number in numbers]
        shapes = {name: shape for group in groups for name, shape in group.shapes.items()}
        if cut(shapes, len(column.shards), limit) != [dict(group.shapes) for group in groups]:
            raise Unsupported(
                f"{column.model.file.path}: ds_config says {SUB_GROUP_SIZE} = {limit}, and the "
                "sub-groups are not cut like that; load it with DeepSpeed, and save it again"
            )
        made.append([_sub_group(part, groups, ranks) for part in cut(shapes, ranks, limit)])
    return made


def cut(shapes: Shapes, ranks: int, limit: int) -> list[Shapes]:
    """The sub-groups of one param group; none where it has no parameters."""
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


def _sub_group(shapes: Shapes, groups: Sequence[FlatGroup], ranks: int) -> SubGroup:
    sources = [group for group in groups if any(name in group.shapes for name in shapes)]
    for group in sources:
        group.check_roles()
        if _common(group) != _common(sources[0]):
            raise Unsupported(
                f"{first_of(group.shards).file.path}: sub-groups {sources[0].number} and "
                f"{group.number} would become one, and their optimizer state differs in kind or "
                "in its step"
            )
    return SubGroup(Geometry(shapes, (), ranks, None), sources[0])


def _common(group: FlatGroup) -> Any:
    """What must be equal in all parts of a sub-group."""
    shard = first_of(group.shards)
    numbers = {key: _number(shard, value) for key, value in shard.scalars[group.number].items()}
    return {role: group.dtype(role) for role in group.roles}, numbers


def _number(shard: Shard, value: Any) -> Any:
    """A number, or the bytes of a tensor of one."""
    tensor = as_tensor(value)
    if tensor is None or tensor.shape != ():
        return value
    with shard.file.path.open("rb") as file:
        return os.pread(file.fileno(), tensor.dtype.itemsize, shard.file.first_byte(tensor))


def renumbered(saved: Mapping[str, Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    """torch's param groups with the numbers of as many sub-groups as each has now."""
    groups, first = [], 0
    for group, count in zip(saved["param_groups"], counts, strict=True):
        groups.append({**group, "params": list(range(first, first + count))})
        first += count
    return groups
