"""A ZeRO checkpoint of one model-parallel rank before it is cut: what no number of ranks changes.

The trees of its two kinds of file, the param groups with their parameters in the optimizer's order,
and for each part of a group the types of its vectors and the rest of its state. Readers of other
formats make one too (`fresh`); `recast` makes one of another stage; the writers cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.flat_groups import FlatGroup
from zerotools.formats.deepspeed.model import Shapes
from zerotools.formats.deepspeed.order import is_round_robin, optimizer_order
from zerotools.formats.deepspeed.settings import zero_optimization
from zerotools.formats.deepspeed.shards import STAGE_3, Shard, first_of
from zerotools.formats.deepspeed.training import scalar_of
from zerotools.io.torchzip.torchfile import TorchFile
from zerotools.io.torchzip.values import StoredTensor

STATE = "optimizer_state_dict"
BASE_STATE = "base_optimizer_state"


@dataclass(frozen=True)
class Part:
    """Parameters whose state was kept together. `dtypes` are of the vectors by role, masters
    (`param`) first; `state` is the optimizer's entry, in its order, whose vectors are replaced, or
    None where it was never stepped. `numbers` are what must be equal for parts to become one."""

    where: str
    shapes: Shapes
    dtypes: Mapping[str, DType]
    state: Mapping[str, Any] | None
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class ParamGroup:
    """`shapes` has the parameters in the order in which the optimizer was given them; `parts` are
    in the same order. `options` are torch's param group but for `params`."""

    shapes: Shapes
    parts: Sequence[Part]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Blueprint:
    """`model` and `optimizer` are the whole trees of the two kinds of file, those of rank 0 for
    stage 3; what lies in `model_file` and `shard_file` is carried over. `shapes` are the values of
    `param_shapes` as they are to be written. `frozen` are the frozen parameters, of which stage 3
    writes slices. `weights` are tensors in `model` that are filled anew, `sources` where from;
    `numbers` are the bytes of storages that are known. `held` are the tensors of the source, to be
    found again in the output."""

    kind: str
    stage: int | None
    groups: Sequence[ParamGroup]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    shapes: Mapping[str, Any]
    frozen: Mapping[str, Tensor]
    precision: DType | None
    is_aligned: bool = False
    model_file: TorchFile | None = None
    shard_file: TorchFile | None = None
    held: Mapping[Key, Tensor] = field(default_factory=dict)
    weights: Mapping[Key, StoredTensor] = field(default_factory=dict)
    sources: Mapping[Key, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def inner(self) -> dict[str, Any]:
        """What the optimizer itself saved."""
        inner: dict[str, Any] = self.optimizer[STATE]
        return inner

    @property
    def zero(self) -> Mapping[str, Any]:
        """The `zero_optimization` of the run's configuration; empty where the files have none."""
        return zero_optimization(self.model.get("ds_config"))


def blueprint_of(column: Column, hyperparameters: Mapping[str, Any]) -> Blueprint:
    """The blueprint of what was read. Elastic state has no options: they are `hyperparameters`.

    Raises:
        Unsupported: an order of parameters that the files do not explain.
        BadFile: the ranks' files disagree.
    """
    shard = first_of(column.shards)
    saved = column.model.fields.need("param_shapes", list)
    return Blueprint(
        kind=shard.kind,
        stage=shard.stage,
        groups=list(_groups(column, shard, hyperparameters)),
        model=dict(column.model.fields.tree),
        optimizer={**shard.file.tree, STATE: dict(shard.fields.tree)},
        shapes={str(name): shape for group in saved for name, shape in group.items()},
        frozen={name: column.tensors[Key(name, "param")] for name in _frozen(column, shard)},
        precision=_precision(column),
        is_aligned=any(any(group.geometry.paddings) for group in column.groups),
        model_file=column.model.file,
        shard_file=shard.file,
        held=column.tensors,
    )


def _frozen(column: Column, shard: Shard) -> Iterator[str]:
    """In the order of the files; stage 1 does not list them."""
    listed = column.model.frozen_shapes
    yield from listed
    if shard.kind != STAGE_3:
        names = column.model.module or {}
        yield from (name for name in names if name in column.frozen and name not in listed)


def _precision(column: Column) -> DType | None:
    """The type of the run's weights, if the model file has any that was trained."""
    module = column.model.module or {}
    names = (name for group in column.groups for name in group.shapes)
    return next((module[name].dtype for name in names if name in module), None)


def _groups(
    column: Column, shard: Shard, hyperparameters: Mapping[str, Any]
) -> Iterator[ParamGroup]:
    round_robin = is_round_robin(column.model, shard)
    saved = shard.param_groups
    if saved is None:
        saved = [{**hyperparameters, "params": [number]} for number in range(len(column.groups))]
    for numbers, options in zip(_members(column, shard, saved), saved, strict=True):
        parts = [_part(column.groups[number], shard) for number in numbers]
        if shard.kind != STAGE_3:
            orders = [optimizer_order(column.groups[n], round_robin=round_robin) for n in numbers]
            shapes = {
                name: part.shapes[name]
                for part, names in zip(parts, orders, strict=True)
                for name in names
            }
        else:
            shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
        rest = {key: value for key, value in options.items() if key != "params"}
        yield ParamGroup(shapes, parts, rest)


def _members(column: Column, shard: Shard, saved: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The flat groups (stage 3: sub-groups) of each param group.

    Raises:
        BadFile: one is in none, or in several.
    """
    found = [list(group.get("params", ())) for group in saved]
    if sorted(number for numbers in found for number in numbers) != [*range(len(column.groups))]:
        raise BadFile(
            f"{shard.file.path} has {len(column.groups)} flat groups, and its param_groups list "
            f"{found}"
        )
    return found


def _part(group: FlatGroup, shard: Shard) -> Part:
    group.check_roles()
    saved = shard.fields.tree.get(BASE_STATE)
    if isinstance(saved, list):
        state = saved[group.number]
    else:
        inner = saved if isinstance(saved, Mapping) else shard.fields.tree[STATE]
        state = (inner.get("state") or {}).get(group.number)
    return Part(
        where=f"{shard.file.path}: group {group.number}",
        shapes=group.shapes,
        dtypes={role: group.dtype(role) for role in group.roles},
        state=state,
        numbers={
            role: scalar_of(shard, value) or value
            for role, value in shard.scalars[group.number].items()
        },
    )


def joined(parts: Sequence[Part]) -> Part:
    """One of the parts for all of them.

    Raises:
        Unsupported: they differ in what must be equal.
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.dtypes, part.numbers) != (first.dtypes, first.numbers):
            raise Unsupported(
                f"{first.where} and {part.where.rpartition(': ')[2]} would become one, and their "
                "optimizer state differs in kind or in its step"
            )
    return first
