"""The flat groups of one model-parallel rank, from its files: their layout and partitions.

At stages 1 and 2, DeepSpeed cuts most of the padding off the end of the saved masters, by rules
that changed three times. So this module does not depend on how much padding was cut. For N ranks, a
whole group is padded to a multiple of A: A = 2N since version 0.5.2, and A = N before.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py`; the old alignments from tags v0.3.0 to v0.5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.partitioning.flat_layout import (
    FlatLayout,
    WholeParameters,
    is_of_muon,
    partition_size,
)
from zerotools.formats.deepspeed.partitioning.stack_experts import in_whole
from zerotools.formats.deepspeed.schema.ds_config import ROUND_ROBIN, zero_optimization
from zerotools.formats.deepspeed.schema.expert_parallel import (
    ExpertBlock,
    ExpertNaming,
    ExpertPlacement,
    StackedExperts,
    is_expert,
)
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes
from zerotools.formats.deepspeed.schema.optim_states import (
    STAGE_1_AND_2,
    STAGE_3,
    FlatPartition,
    OptimStates,
    version_of,
)
from zerotools.formats.deepspeed.schema.state_dict_keys import DS_VERSION, slice_mappings
from zerotools.io.torchzip.tree_tensors import as_tensor

ALIGNMENT_FACTORS = (2, 1)


@dataclass(frozen=True, slots=True)
class FlatGroup:
    """The flat buffer of a param group (stage 3: of a sub-group), over all ranks that share it.

    Attributes:
        optim_states: the optimizer files of these ranks; None for a missing file.
        blocks: for a group of AutoEP's experts: name of a weight -> the block of experts that these
            ranks hold.
        geometry: the layout of the buffer. A weight in `blocks` has the shape of its block here.
    """

    number: int
    geometry: FlatLayout
    optim_states: Sequence[OptimStates | None]
    blocks: Mapping[str, ExpertBlock] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        return self.geometry.shapes

    @property
    def roles(self) -> list[str]:
        """The roles that at least one rank has for this group: `param` (masters) first, then the
        optimizer state such as `exp_avg`.
        """
        names = (name for optim in self.optim_states if optim for name in optim.states[self.number])
        return ["param", *dict.fromkeys(names)]

    def partitions(self, role: str) -> list[FlatPartition | None]:
        """Return the partition of one role on each rank; None if a rank's file is missing or lacks
        the role.
        """
        return [
            None if optim is None else self._partition(optim, role) for optim in self.optim_states
        ]

    def _partition(self, optim: OptimStates, role: str) -> FlatPartition | None:
        if role == "param":
            return optim.masters[self.number]
        return optim.states[self.number].get(role)

    def dtype(self, role: str) -> DType:
        """Return the dtype of the partitions with this role."""
        found = _dtype(self.partitions(role))
        assert found is not None, f"{role} is in no file"
        return found

    def check_roles(self) -> None:
        """Check that all ranks have the same roles.

        Raises:
            BadFile: a rank lacks a role that another rank has.
        """
        whole = {role for role in self.roles if self.is_whole(role)}
        parts = WholeParameters(self.geometry)
        present = [
            optim
            for rank, optim in enumerate(self.optim_states)
            if optim is not None and not (whole and rank and not parts.of_rank(rank))
        ]
        for optim in present:
            mine, others = (each.states[self.number].keys() for each in (optim, present[0]))
            if mine != others:
                raise BadFile(
                    f"{optim.file.path} has the optimizer state {sorted(mine)} for group "
                    f"{self.number}, but {present[0].file.path} has {sorted(others)}: the files "
                    "are from two runs; take another checkpoint"
                )

    def is_whole(self, role: str) -> bool:
        """Return whether each rank's buffer with this role contains whole parameters instead of a
        partition.

        Muon's momenta are whole at stages 1 and 2 unless they are offloaded.

        Raises:
            BadFile: the buffers are neither whole nor partitions.
        """
        if self.geometry.zero12_numel is None or not self.is_muons(role):
            return False
        parts = WholeParameters(self.geometry)
        found = {
            rank: partition
            for rank, partition in enumerate(self.partitions(role))
            if partition is not None
        }
        if all(each.numel == self.geometry.zero12_numel for each in found.values()):
            return False
        for rank, each in found.items():
            if each.numel != parts.numel(rank):
                raise BadFile(
                    f"{each.file}: {role} of group {self.number} has {each.numel} elements, but "
                    f"should have {parts.numel(rank)} (the parameters of rank {rank}) or "
                    f"{self.geometry.zero12_numel} (its partition); take another checkpoint"
                )
        return True

    def is_muons(self, role: str) -> bool:
        """Return whether this role is the momentum of the optimizer Muon, according to the options
        of the group.
        """
        groups = next((optim.param_groups for optim in self.optim_states if optim), None) or ()
        options = groups[self.number] if self.number < len(groups) else None
        return is_of_muon(role, options)

    def tensors(self, role: str) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of each parameter's tensor with this role.

        For a weight in `blocks`, the tensor is the tensor of all experts, with chunks only for this
        block.
        """
        partitions = self.partitions(role)
        dtype = _dtype(partitions)
        if dtype is None:
            return
        layout = WholeParameters(self.geometry) if self.is_whole(role) else self.geometry
        for name, tensor in layout.tensors(dtype, partitions):
            block = self.blocks.get(name)
            yield name, tensor if block is None else in_whole(tensor, block)

    def scalars(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (parameter name, role, tensor) for each parameter of the group and each 0-d tensor
        of its state, such as `step`.

        The parameters of a group share one such tensor for each role, and it is equal on all ranks.
        """
        optim = next((optim for optim in self.optim_states if optim is not None), None)
        for role, value in (optim.scalars[self.number] if optim else {}).items():
            stored = as_tensor(value)
            if optim is not None and stored is not None and stored.shape == ():
                tensor = optim.file.tensor(stored)
                for name in self.shapes:
                    yield name, role, tensor


def _dtype(partitions: Sequence[FlatPartition | None]) -> DType | None:
    present = [partition for partition in partitions if partition is not None]
    if not present:
        return None
    for partition in present:
        if partition.dtype != present[0].dtype:
            raise BadFile(
                f"{present[0].file} has the dtype {present[0].dtype}, but {partition.file} has "
                f"{partition.dtype}: the files are from two runs; take another checkpoint"
            )
    return present[0].dtype


def flat_groups(
    shapes: Sequence[Shapes], optim_states: Sequence[OptimStates | None], naming: ExpertNaming
) -> list[FlatGroup]:
    """Return the flat groups of one model-parallel rank, from its `param_shapes` and the optimizer
    files of its ranks.

    A group of experts gives several flat groups with the same number, one for each expert-parallel
    rank.

    Raises:
        BadFile: the files disagree with one another, or with `param_shapes`.
    """
    present = [optim for optim in optim_states if optim is not None]
    if not present:
        return []
    first = present[0]
    for optim in present:
        if (optim.kind, len(optim.masters)) != (first.kind, len(first.masters)):
            raise BadFile(
                f"{optim.file.path} was written by {optim.kind} with {len(optim.masters)} "
                f"groups, but {first.file.path} by {first.kind} with {len(first.masters)}: the "
                "files are from two runs; take another checkpoint"
            )
    if len(shapes) != len(first.masters):
        raise BadFile(
            f"{first.file.path} has {len(first.masters)} flat groups, but param_shapes of the "
            f"model file lists {len(shapes)}: the files are from two runs; take another checkpoint"
        )
    return [
        part
        for number, group in enumerate(shapes)
        for part in _parts(number, group, optim_states, first, naming)
    ]


def _parts(
    number: int,
    shapes: Shapes,
    optim_states: Sequence[OptimStates | None],
    first: OptimStates,
    naming: ExpertNaming,
) -> Iterator[FlatGroup]:
    """Yield the flat group with this number: one for each expert-parallel rank if these ranks have
    different experts.

    The files number the experts of each rank from 0; the names here have numbers over all ranks.
    """
    ranks = ranks_of_group(number, optim_states, first)
    if ranks == len(optim_states):
        yield _group(number, shapes, optim_states, first, ranks)
        return
    if len(optim_states) % ranks:
        raise BadFile(
            f"{first.file.path}: group {number} is divided among {ranks} ranks, but the "
            f"{len(optim_states)} ranks of the run are not a multiple of {ranks}; take another "
            "checkpoint"
        )
    placement = ExpertPlacement(len(optim_states), len(optim_states) // ranks, naming.data_first)
    if shapes and all(map(naming.stacked.blocks, shapes)):
        for expert_rank in range(placement.ep_size):
            blocks = _blocks(shapes, expert_rank, placement, naming.stacked, first)
            own = [optim_states[rank] for rank in placement.ranks_of(expert_rank)]
            yield replace(_group(number, shapes, own, first, ranks), blocks=blocks)
        return
    if first.kind == STAGE_3 or not all(map(is_expert, shapes)):
        raise Unsupported(
            f"{first.file.path}: group {number} is divided among {ranks} of {len(optim_states)} "
            "ranks, but its parameters are not experts of DeepSpeed or AutoEP; save it with a "
            "group that is divided among all ranks"
        )
    for expert_rank in range(placement.ep_size):
        renamed = {
            naming.global_name(name, expert_rank, placement.ep_size): shape
            for name, shape in shapes.items()
        }
        own = [optim_states[rank] for rank in placement.ranks_of(expert_rank)]
        yield _group(number, renamed, own, first, ranks)


def _blocks(
    shapes: Shapes,
    expert_rank: int,
    placement: ExpertPlacement,
    stacked: StackedExperts,
    first: OptimStates,
) -> dict[str, ExpertBlock]:
    """Return {name of a weight: block of AutoEP's experts that the ranks of `expert_rank` hold}."""
    found = {}
    for name, shape in shapes.items():
        every = stacked.blocks(name)
        if len(every) != placement.ep_size:
            raise BadFile(
                f"{first.file.path}: {name} is divided among {placement.ep_size} "
                f"expert-parallel ranks, but ds_autoep_layers has {len(every)}: the file is "
                "damaged; copy or download it again"
            )
        found[name] = every[expert_rank]
        if shape[:1] != (found[name].count,):
            raise BadFile(
                f"{first.file.path}: {name} has shape {shape} on each rank, but a rank should "
                f"have {found[name].count} experts: the file is damaged; copy or download it "
                "again"
            )
    return found


def _group(
    number: int,
    shapes: Shapes,
    optim_states: Sequence[OptimStates | None],
    first: OptimStates,
    ranks: int,
) -> FlatGroup:
    paddings = (first.alignment_paddings or ())[number : number + 1]
    unpartitioned = FlatLayout(shapes, paddings[0] if paddings else (), ranks, None)
    group = FlatGroup(number, unpartitioned, optim_states)
    if first.kind == STAGE_3:
        _check_zero3_partitions(group)
        return group
    return FlatGroup(
        number, replace(unpartitioned, zero12_numel=_zero12_numel(group, first)), optim_states
    )


def ranks_of_group(
    number: int, optim_states: Sequence[OptimStates | None], first: OptimStates
) -> int:
    """Return the number of ranks that share the flat buffer of a group; for a group of experts,
    this is not all ranks.
    """
    count = first.partition_count
    if isinstance(count, list) and number < len(count) and type(count[number]) is int:
        return int(count[number])
    if isinstance(count, int) and count > 0 and first.kind != STAGE_3:
        return count
    return len(optim_states)


def _zero12_numel(group: FlatGroup, first: OptimStates) -> int:
    """Return P, the number of elements in a partition at stages 1 and 2, according to the alignment
    rule that fits the files.

    Raises:
        BadFile: the number of elements in the files fits neither rule.
    """
    total, ranks = group.geometry.total, group.geometry.dp_size
    longest = max((v.numel for v in group.partitions("param") if v is not None), default=0)
    exact = {
        partition.numel
        for optim in group.optim_states
        if optim is not None and optim.is_rigid
        for role, partition in optim.states[group.number].items()
        if not group.is_muons(role)
    }
    candidates = [partition_size(total, ranks, factor) for factor in _factors(first)]
    for numel in candidates:
        if longest <= numel and exact <= {numel}:
            return numel
    found = f"{longest} elements of masters" + (f" and {sorted(exact)} of state" if exact else "")
    raise BadFile(
        f"{first.file.path}: group {group.number} has {total} elements, so each of {ranks} ranks "
        f"should have {candidates[0]}, but the ranks have {found}; take another checkpoint"
    )


def _factors(first: OptimStates) -> tuple[int, ...]:
    """Return the possible factors of the padding, the likely one first: a group is padded to a
    multiple of factor * ranks. The factor is 2 since DeepSpeed 0.5.2, and 1 before.
    """
    version = first.fields.tree.get(DS_VERSION)
    if isinstance(version, str) and version_of(version) < (0, 5, 2):
        return ALIGNMENT_FACTORS[::-1]
    return ALIGNMENT_FACTORS


def _check_zero3_partitions(group: FlatGroup) -> None:
    """Check at stage 3 that the partition of every rank has exactly the expected length."""
    needed, ranks = group.geometry.partition_numel, group.geometry.dp_size
    for role in group.roles:
        for partition in group.partitions(role):
            if partition is not None and partition.numel not in (needed, 0):
                raise BadFile(
                    f"{partition.file}: {role} of sub-group {group.number} has {partition.numel} "
                    f"elements, but should have {needed} ({len(group.shapes)} parameters divided "
                    f"among {ranks} ranks); take another checkpoint"
                )


_ROUND_ROBIN_AT_STAGE_1 = (0, 13)


def round_robin_order(count: int, ranks: int) -> list[int]:
    """Return the round robin order: for each position in a flat buffer, the index of its parameter
    in the optimizer's order.
    """
    return [i for first in range(ranks) for i in range(first, count, ranks)]


def is_round_robin(model: ModelStates, optim: OptimStates) -> bool:
    """Return whether the flat buffers have the parameters in round robin order. The buffers of
    BF16_Optimizer never have this order.
    """
    zero = zero_optimization(model.ds_config)
    return optim.kind == STAGE_1_AND_2 and deals_in_turn(zero, optim.stage, model.version)


def deals_in_turn(zero: Mapping[str, Any], stage: int | None, version: str | None) -> bool:
    """Return whether a run with the settings `zero` uses round robin order, which deals the
    parameters to the ranks in turn.

    Stage 1 of DeepSpeed before 0.13 ignores the setting `round_robin_gradients`.
    """
    if zero.get(ROUND_ROBIN) is not True:
        return False
    return stage != 1 or version is None or version_of(version) >= _ROUND_ROBIN_AT_STAGE_1


def optimizer_order(group: FlatGroup, *, round_robin: bool) -> list[str]:
    """Return the parameter names of a group in the optimizer's order.

    `param_shapes` has the order of the flat buffer. Under `round_robin_gradients` the two orders
    differ: parameter i of the group goes to list i mod N, and the buffer has one list after
    another. Only `ds_config` shows whether this option was on. The result must agree with
    `param_slice_mappings`, which has the optimizer's order too.

    Source: DeepSpeed `runtime/zero/stage_1_and_2.py`: `_round_robin_reorder`,
    `_create_param_mapping`, and the `param_padding` of `__init__`.

    Raises:
        Unsupported: `param_slice_mappings` has another order.
    """
    names = list(group.shapes)
    if round_robin:
        places = zip(round_robin_order(len(names), group.geometry.dp_size), names, strict=True)
        names = [name for _, name in sorted(places)]
    position = {name: i for i, name in enumerate(names)}
    for optim in group.optim_states:
        known = [position[name] for name in _mapped(optim, group.number) if name in position]
        if optim is not None and known != sorted(known):
            raise Unsupported(
                f"{optim.file.path}: ds_config has {ROUND_ROBIN} = {str(round_robin).lower()}, "
                f"but the parameters of group {group.number} are not in that order; load it with "
                "DeepSpeed, and save it again"
            )
    return names


def _mapped(optim: OptimStates | None, number: int) -> Sequence[str]:
    mappings = [] if optim is None else slice_mappings(optim.fields.tree)
    return list(mappings[number]) if number < len(mappings) else ()


def flat_order(names: Sequence[str], ranks: int, *, round_robin: bool) -> list[str]:
    """Return the parameter names in the order of the flat buffer that `ranks` ranks share."""
    return [names[i] for i in round_robin_order(len(names), ranks)] if round_robin else list(names)


def alignment_of(precision: DType) -> int:
    """Return the alignment of parameters under `parameter_alignment`, in elements: 16 bytes in the
    dtype `precision`.
    """
    return 16 // gcd(16, precision.itemsize)


def paddings_of(shapes: Shapes, alignment: int) -> list[int]:
    """Return the number of padding elements after each parameter: 0 after the last parameter."""
    return [-prod(shape) % alignment for shape in list(shapes.values())[:-1]] + [0] * bool(shapes)
