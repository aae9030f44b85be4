"""The logical state: the part of a ZeRO checkpoint that belongs to one model-parallel rank, without
partitions.

It has the trees of the model file and the optimizer file, and the param groups with their
parameters in the optimizer's order. For each part of a group, it has the dtypes of the flat buffers
and the remaining optimizer state.

It is read from DeepSpeed's files (`logical_state_of`), or made from another format
(`logical_state_from` in `writing/lay_out_converted.py`). `change_stage` converts it to another
stage, and the writers partition it for any world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.flat_groups import (
    FlatGroup,
    is_round_robin,
    optimizer_order,
)
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import zero_optimization
from zerotools.formats.deepspeed.schema.model_states import Shapes
from zerotools.formats.deepspeed.schema.optim_states import (
    STAGE_3,
    OptimStates,
    first_of,
    scalar_of,
)
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile


@dataclass(frozen=True)
class StatePart:
    """Some parameters of a param group, with the optimizer state that DeepSpeed stored for them
    together.

    Attributes:
        dtypes: role -> dtype of its flat buffer, with the masters (`param`) first.
        state: the optimizer's state for this part, in the order of its keys. The writer replaces
            the partitions in it. None if the optimizer never made a step.
        scalars: the single numbers such as `step`. Two parts can be joined only if they have equal
            `scalars`.
    """

    where: str
    shapes: Shapes
    dtypes: Mapping[str, DType]
    state: Mapping[str, Any] | None
    scalars: Mapping[str, Any]


@dataclass(frozen=True)
class LogicalGroup:
    """A param group that is not partitioned over ranks.

    Attributes:
        shapes: parameter name -> shape, in the optimizer's order. In a group of experts, these
            are the names in the files.
        parts: the parts of the group, in the same order as `shapes`.
        options: the options in torch's param group (`lr`, ...), without `params`.
        experts: for a group of experts, one map for each expert-parallel rank: name in `shapes` ->
            name that is unique over all ranks. `parts` then has the parts of all these ranks.
        is_stacked: True if the group has AutoEP's stacked experts. The first dimension of their
            shapes is then the number of experts on all ranks.
    """

    shapes: Shapes
    parts: Sequence[StatePart]
    options: Mapping[str, Any]
    experts: Sequence[Mapping[str, str]] = ()
    is_stacked: bool = False

    @property
    def ep_size(self) -> int:
        """The number of expert-parallel ranks that have different parameters of this group.

        The number is 1 if all ranks share the parameters. For AutoEP's stacked experts, it is 1
        too, because they can be split for any number of ranks.
        """
        return len(self.experts) or 1

    def shapes_on(self, ep_size: int) -> Shapes:
        """Return the shapes that the parameters have on one rank if the experts are split over
        `ep_size` expert-parallel ranks.
        """
        if not self.is_stacked:
            return self.shapes
        return {name: (experts // ep_size, *rest) for name, (experts, *rest) in self.shapes.items()}


@dataclass(frozen=True)
class LogicalState:
    """The state of one model-parallel rank, independent of the number of data-parallel ranks.

    Attributes:
        groups: the param groups with their optimizer state.
        model, optimizer: the trees of the model file and of the optimizer file; at stage 3, the
            trees of rank 0.
        shapes: the values of `param_shapes` that will be written.
        frozen: the frozen parameters. Stage 3 writes partitions of them.
        autoep_size: the number of AutoEP's expert-parallel ranks in the save; None if the run did
            not use AutoEP.
        model_file, optim_file: the source files that storages of `model` and `optimizer` are copied
            from.
        source_tensors: the tensors of the source that the output must contain.
        weights: the tensors in `model` that get their values from `weight_sources`, not from
            `model_file`.
        weight_sources: the tensors that these values are copied from.
        known_storages: storage key -> bytes, for storages that are in no source file, such as the
            storages of single numbers.
    """

    kind: str
    stage: int | None
    groups: Sequence[LogicalGroup]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    shapes: Mapping[str, Any]
    frozen: Mapping[str, Tensor]
    precision: DType | None
    is_aligned: bool = False
    autoep_size: int | None = None
    model_file: TorchFile | None = None
    optim_file: TorchFile | None = None
    source_tensors: Mapping[Key, Tensor] = field(default_factory=dict)
    weights: Mapping[Key, StoredTensor] = field(default_factory=dict)
    weight_sources: Mapping[Key, Tensor] = field(default_factory=dict)
    known_storages: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def optimizer_state(self) -> dict[str, Any]:
        """The state that the optimizer class saved: the value of `optimizer_state_dict` in the
        file.
        """
        inner: dict[str, Any] = self.optimizer[state_dict_keys.STATE_DICT]
        return inner

    @property
    def zero(self) -> Mapping[str, Any]:
        """The table `zero_optimization` of the run's configuration; empty if the files have
        none."""
        return zero_optimization(self.model.get(state_dict_keys.DS_CONFIG))

    @property
    def has_experts(self) -> bool:
        """True if expert-parallel ranks have different parameters."""
        return self.autoep_size is not None or any(group.experts for group in self.groups)


def logical_state_of(mp_shard: MpShard, hyperparameters: Mapping[str, Any]) -> LogicalState:
    """Return the logical state of one model-parallel rank, from its shard.

    `hyperparameters` are the options of the param groups. They are needed only for elastic state,
    which does not store them.

    Raises:
        Unsupported: the order of the parameters cannot be derived from the files.
        BadFile: the files of the ranks disagree.
    """
    optim = first_of(mp_shard.optim_states)
    saved = mp_shard.model.fields.need(state_dict_keys.PARAM_SHAPES, list)
    return LogicalState(
        kind=optim.kind,
        stage=optim.stage,
        groups=list(_groups(mp_shard, optim, hyperparameters)),
        model=dict(mp_shard.model.fields.tree),
        optimizer={**optim.file.tree, state_dict_keys.STATE_DICT: dict(optim.fields.tree)},
        shapes={str(name): shape for group in saved for name, shape in group.items()},
        frozen={name: mp_shard.tensors[Key(name, "param")] for name in _frozen(mp_shard, optim)},
        precision=_precision(mp_shard),
        is_aligned=any(any(group.geometry.paddings) for group in mp_shard.groups),
        autoep_size=mp_shard.model.stacked_experts.ep_size,
        model_file=mp_shard.model.file,
        optim_file=optim.file,
        source_tensors=mp_shard.tensors,
    )


def _frozen(mp_shard: MpShard, optim: OptimStates) -> Iterator[str]:
    """Yield the names of the frozen parameters, in the order of the files. Stage 1 does not list
    them, so they are found among the weights.
    """
    listed = mp_shard.model.frozen_shapes
    yield from listed
    if optim.kind != STAGE_3:
        names = mp_shard.model.module or {}
        yield from (name for name in names if name in mp_shard.frozen and name not in listed)


def _precision(mp_shard: MpShard) -> DType | None:
    """Return the dtype of the run's weights; None if the model file has no trained weight."""
    module = mp_shard.model.module or {}
    names = (name for group in mp_shard.groups for name in group.shapes)
    return next((module[name].dtype for name in names if name in module), None)


def _groups(
    mp_shard: MpShard, optim: OptimStates, hyperparameters: Mapping[str, Any]
) -> Iterator[LogicalGroup]:
    round_robin = is_round_robin(mp_shard.model, optim)
    stacked = mp_shard.model.stacked_experts
    flat = _by_number(mp_shard.groups)
    saved = optim.param_groups
    if saved is None:
        saved = [state_dict_keys.param_group(hyperparameters, [number]) for number in flat]
    for numbers, options in zip(_members(len(flat), optim, saved), saved, strict=True):
        own = [flat[number] for number in numbers]
        if len({len(groups) for groups in own}) > 1:
            raise BadFile(
                f"{optim.file.path}: the flat groups {numbers} belong to one param group, but are "
                "divided among different numbers of ranks; take another checkpoint"
            )
        shapes, experts = _ordered(own, round_robin=round_robin)
        parts = [_part(group) for groups in own for group in groups]
        rest = {key: value for key, value in options.items() if key != state_dict_keys.PARAMS}
        if shapes and all(map(stacked.blocks, shapes)):
            whole = {name: stacked.whole_shape(name, shape) for name, shape in shapes.items()}
            yield LogicalGroup(whole, parts, rest, is_stacked=True)
        else:
            yield LogicalGroup(shapes, parts, rest, experts)


def _by_number(groups: Sequence[FlatGroup]) -> dict[int, list[FlatGroup]]:
    """Return the flat groups keyed by group number. A group number has several flat groups if
    expert-parallel ranks have different experts.
    """
    found: dict[int, list[FlatGroup]] = {}
    for group in groups:
        found.setdefault(group.number, []).append(group)
    return found


def _ordered(
    flat: Sequence[Sequence[FlatGroup]], *, round_robin: bool
) -> tuple[Shapes, list[dict[str, str]]]:
    """Return (shapes, mappings). The shapes are those of a param group in the optimizer's order,
    keyed by the names in the files of the first expert-parallel rank. There is one mapping for each
    expert-parallel rank: name in these files -> name over all ranks. If all ranks share the
    parameters, there are no mappings.
    """
    shapes = {name: shape for groups in flat for name, shape in groups[0].shapes.items()}
    orders = [
        [name for group in ranks for name in optimizer_order(group, round_robin=round_robin)]
        for ranks in zip(*flat, strict=True)
    ]
    ordered = {name: shapes[name] for order in orders[:1] for name in order}
    several = orders if len(orders) > 1 else ()
    return ordered, [dict(zip(ordered, order, strict=True)) for order in several]


def _members(count: int, optim: OptimStates, saved: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return, for each param group, the numbers of its flat groups (stage 3: of its sub-groups).

    Raises:
        BadFile: a flat group is in no param group, or in several.
    """
    found = [state_dict_keys.numbers_of(group) for group in saved]
    if sorted(number for numbers in found for number in numbers) != [*range(count)]:
        raise BadFile(
            f"{optim.file.path} has {count} flat groups, but its param_groups list {found}: "
            "each flat group must be in one param group; take another checkpoint"
        )
    return found


def _part(group: FlatGroup) -> StatePart:
    group.check_roles()
    optim = first_of(group.optim_states)
    saved = optim.fields.tree.get(state_dict_keys.BASE_STATE)
    if isinstance(saved, list):
        state = saved[group.number]
    else:
        inner = (
            saved if isinstance(saved, Mapping) else optim.fields.tree[state_dict_keys.STATE_DICT]
        )
        state = (inner.get(state_dict_keys.STATE) or {}).get(group.number)
    return StatePart(
        where=f"{optim.file.path}: group {group.number}",
        shapes=group.shapes,
        dtypes={role: group.dtype(role) for role in group.roles},
        state=state,
        scalars={
            role: scalar_of(optim, value) or value
            for role, value in optim.scalars[group.number].items()
        },
    )


def join_parts(parts: Sequence[StatePart]) -> StatePart:
    """Join several parts of a param group into one part.

    Raises:
        Unsupported: the parts have different dtypes, or different values of a number such as
            `step`; a joined part can hold only one.
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.dtypes, part.scalars) != (first.dtypes, first.scalars):
            raise Unsupported(
                f"{first.where} and {part.where} would be merged, but the dtypes or the numbers "
                "(such as step) of their optimizer state differ"
            )
    return first
