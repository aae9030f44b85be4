"""Determine the target layout of a logical state: as the user requested or, without a request, as
in the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from zerotools.core.dtypes import BFLOAT16
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalGroup, LogicalState, join_parts
from zerotools.formats.deepspeed.partitioning.flat_groups import (
    alignment_of,
    deals_in_turn,
)
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import (
    ALIGNED,
    DEFAULT_SUB_GROUP_SIZE,
    ROUND_ROBIN,
    STAGE,
    SUB_GROUP_SIZE,
    ZeroSettings,
    adds_up_in_fp32,
    configured_precision,
    mics_keys,
    number_of,
    offloads_optimizer,
    zero_optimization,
)
from zerotools.formats.deepspeed.schema.expert_parallel import (
    DATA_FIRST,
    EXPERT_PARALLEL,
    EXPERT_RANKS,
    GROUP_NAME,
    ExpertPlacement,
    configured_ranks,
    group_name,
    is_data_first,
)
from zerotools.formats.deepspeed.schema.model_states import Shapes
from zerotools.formats.deepspeed.schema.optim_states import BF16_OPTIMIZER, STAGE_1_AND_2, STAGE_3
from zerotools.formats.deepspeed.writing.flat_buffers import FlatBuffer


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """The layout of DeepSpeed's files in the output.

    Attributes:
        kind: the kind of the optimizer files.
        stage: the ZeRO stage; None for BF16_Optimizer.
        sub_group_size: used only by stage 3.
        alignment: the alignment of parameters, in elements; None if they are not aligned. Stage 3
            ignores `alignment` and `round_robin`.
        data_first: True if consecutive ranks have the same experts.
        is_offloaded: True if the optimizer is kept on the CPU.
        autoep_size: the number of AutoEP's expert-parallel ranks; None if the run does not use
            AutoEP.
    """

    dp_size: int
    kind: str
    stage: int | None
    sub_group_size: int = DEFAULT_SUB_GROUP_SIZE
    round_robin: bool = False
    alignment: int | None = None
    data_first: bool = False
    is_offloaded: bool = False
    autoep_size: int | None = None

    def placement_of(self, group: LogicalGroup) -> ExpertPlacement:
        """Return the placement that says which data-parallel ranks share the parameters of a
        group."""
        ep_size = self.autoep_size or 1 if group.is_stacked else group.ep_size
        return ExpertPlacement(self.dp_size, ep_size, self.data_first)

    @property
    def autoep_placement(self) -> ExpertPlacement | None:
        """The placement that says which data-parallel ranks share AutoEP's experts; None if the run
        does not use AutoEP.
        """
        if self.autoep_size is None:
            return None
        return ExpertPlacement(self.dp_size, self.autoep_size, self.data_first)


def target_layout_of(
    logical: LogicalState, settings: ZeroSettings, dp_size: int, saved_dp_size: int | None = None
) -> TargetLayout:
    """Return the layout of the output for `dp_size` data-parallel ranks.

    `saved_dp_size` is the number of DeepSpeed ranks that saved the state; None if another program
    saved it.

    Raises:
        BadRequest: a setting does not exist at this stage, or this number of ranks cannot share the
            experts.
        Unsupported: the source's sub-groups do not match its configuration.
    """
    settled = settings.settled()
    _check_precision(logical, settings)
    kind, stage = _class_of(logical, settings, settled.stage)
    data_first = _data_first(logical, settings, dp_size)
    autoep_size = _autoep_size(logical, settings, dp_size)
    if kind == STAGE_3:
        if settled.round_robin is not None:
            raise BadRequest(
                "--round-robin is for stages 1 and 2, but the output is for stage 3; leave "
                "--round-robin out"
            )
        size = settled.sub_group_size
        if size is None:
            if logical.kind == STAGE_3 and saved_dp_size is not None:
                check_sub_groups(logical, saved_dp_size)
            size = sub_group_size_of(logical)
        return TargetLayout(
            dp_size,
            kind,
            stage,
            sub_group_size=size,
            data_first=data_first,
            autoep_size=autoep_size,
        )
    if settled.sub_group_size is not None:
        raise BadRequest(
            f"--sub-group-size is for stage 3, but the output is for stage {stage or 1}; leave "
            "--sub-group-size out"
        )
    if _is_bf16_optimizers(logical, settings, settled.stage):
        if settings.round_robin:
            raise BadRequest("BF16_Optimizer does not support --round-robin; leave it out")
        return TargetLayout(dp_size, kind, stage, data_first=data_first, autoep_size=autoep_size)
    round_robin = settled.round_robin
    if round_robin is None:
        round_robin = deals_in_turn(
            logical.zero, stage, logical.model.get(state_dict_keys.DS_VERSION)
        )
    given = logical.model.get(state_dict_keys.DS_CONFIG)
    return TargetLayout(
        dp_size,
        kind,
        stage,
        round_robin=round_robin,
        alignment=_alignment(logical, settings),
        data_first=data_first,
        is_offloaded=offloads_optimizer(
            given if settings.ds_config is None else settings.ds_config
        ),
        autoep_size=autoep_size,
    )


def _data_first(logical: LogicalState, settings: ZeroSettings, dp_size: int) -> bool:
    """Return whether consecutive ranks have the same experts in the output. The number of
    expert-parallel ranks does not change.
    """
    for group in logical.groups:
        if dp_size % group.ep_size:
            where = group.parts[0].where
            raise BadRequest(
                f"{where} has experts over {group.ep_size} expert-parallel ranks, and zerotools "
                "does not change their number: --world-size must be a multiple of "
                f"{group.ep_size}, not {dp_size}"
            )
    given = settings.ds_config
    config = logical.model.get(state_dict_keys.DS_CONFIG) if given is None else given
    return logical.has_experts and is_data_first(config)


def _autoep_size(logical: LogicalState, settings: ZeroSettings, dp_size: int) -> int | None:
    """Return the number of AutoEP's expert-parallel ranks in the output, from the user's
    configuration or else from the source. Return None if the output does not use AutoEP.
    """
    if logical.autoep_size is None:
        return None
    size = configured_ranks(settings.ds_config) or logical.autoep_size
    where = logical.model_file.path if logical.model_file is not None else "the source"
    if dp_size % size:
        raise BadRequest(
            f"{where} has experts of AutoEP for {size} expert-parallel ranks, but --world-size "
            f"{dp_size} is not a multiple of {size}: choose a multiple, or pass --ds-config with "
            f"another {EXPERT_PARALLEL}.{EXPERT_RANKS}"
        )
    for group in logical.groups:
        for name, shape in group.shapes.items() if group.is_stacked else ():
            if shape[0] % size:
                raise BadRequest(
                    f"{name} has {shape[0]} experts, which {EXPERT_PARALLEL}.{EXPERT_RANKS} = "
                    f"{size} does not divide: set {EXPERT_RANKS} to a divisor of {shape[0]}"
                )
    return size


def _check_precision(logical: LogicalState, settings: ZeroSettings) -> None:
    asked, known = configured_precision(settings.ds_config), logical.precision
    if asked is not None and known is not None and asked != known:
        raise BadRequest(
            f"the checkpoint was trained in {known}, but the configuration trains in {asked}; "
            "zerotools does not change the precision: correct the configuration"
        )


def _class_of(
    logical: LogicalState, settings: ZeroSettings, stage: int | None
) -> tuple[str, int | None]:
    """Return the kind of the optimizer files (the class that writes them) and their ZeRO stage. The
    stage may be None for BF16_Optimizer, which can also load files of STAGE_1_AND_2.
    """
    if stage is None:
        return logical.kind, logical.stage
    if stage == 3:
        return STAGE_3, 3
    if logical.kind == BF16_OPTIMIZER and _is_bf16_optimizers(logical, settings, stage):
        return logical.kind, logical.stage if logical.zero.get(STAGE) else stage
    return STAGE_1_AND_2, stage


def _is_bf16_optimizers(logical: LogicalState, settings: ZeroSettings, stage: int | None) -> bool:
    """Return whether the resuming run uses BF16_Optimizer. Its flat buffers never have the
    parameters in round robin order.
    """
    was = logical.kind == BF16_OPTIMIZER
    if stage is None:
        return was
    if stage != 1 or logical.precision not in (None, BFLOAT16):
        return False
    if settings.ds_config is None:
        return was or adds_up_in_fp32(logical.model.get(state_dict_keys.DS_CONFIG))
    # A pipeline in bf16 uses BF16_Optimizer, whatever the configuration says.
    is_pipeline = logical.model.get(state_dict_keys.MODULE) is None
    return (was and is_pipeline) or adds_up_in_fp32(settings.ds_config)


def _alignment(logical: LogicalState, settings: ZeroSettings) -> int | None:
    zero = logical.zero if settings.ds_config is None else zero_optimization(settings.ds_config)
    is_kept = settings.ds_config is None and logical.is_aligned
    if not is_kept and zero.get(ALIGNED) is not True:
        return None
    if logical.precision is None:
        file = logical.model_file.path if logical.model_file is not None else "the source"
        raise Unsupported(
            f"{file} has aligned parameters but does not record their dtype; take another "
            "checkpoint"
        )
    return alignment_of(logical.precision)


def with_config(logical: LogicalState, layout: TargetLayout) -> LogicalState:
    """Return the logical state with its recorded configuration changed, so that it matches the
    layout of the output.
    """
    changed = dict(_differing(logical, layout))
    placed = dict(_placed(logical, layout))
    if not changed and not placed and not mics_keys(logical.zero):
        return logical
    return replace(
        logical,
        groups=[_renamed(logical, layout, group) for group in logical.groups],
        model=_with_config(logical.model, changed, placed),
        optimizer=_with_config(logical.optimizer, changed, placed),
    )


def _placed(logical: LogicalState, layout: TargetLayout) -> Iterator[tuple[str, Any]]:
    """Yield (key, new value) for each key outside `zero_optimization` that must change in the
    configuration.
    """
    known = is_data_first(logical.model.get(state_dict_keys.DS_CONFIG))
    if logical.has_experts and known != layout.data_first:
        yield DATA_FIRST, layout.data_first

    if layout.autoep_size is not None and layout.autoep_size != logical.autoep_size:
        config = logical.model.get(state_dict_keys.DS_CONFIG)
        table = config.get(EXPERT_PARALLEL) if isinstance(config, dict) else None
        yield EXPERT_PARALLEL, {**(table or {}), EXPERT_RANKS: layout.autoep_size}


def _renamed(logical: LogicalState, layout: TargetLayout, group: LogicalGroup) -> LogicalGroup:
    """Return a param group of AutoEP's experts under its new name, which contains the number of
    expert-parallel ranks. Other groups are returned unchanged.
    """
    before, after = logical.autoep_size, layout.autoep_size
    if not group.is_stacked or before is None or after is None:
        return group
    if group.options.get(GROUP_NAME) != group_name(before):
        return group
    return replace(group, options={**group.options, GROUP_NAME: group_name(after)})


def _differing(logical: LogicalState, layout: TargetLayout) -> Iterator[tuple[str, Any]]:
    zero = logical.zero
    if layout.stage is not None and zero.get(STAGE) != layout.stage:
        yield STAGE, layout.stage
    if layout.kind == STAGE_3 and sub_group_size_of(logical) != layout.sub_group_size:
        yield SUB_GROUP_SIZE, layout.sub_group_size
    if layout.kind == STAGE_1_AND_2 and (zero.get(ROUND_ROBIN) is True) != layout.round_robin:
        yield ROUND_ROBIN, layout.round_robin
    if layout.kind == STAGE_1_AND_2 and (zero.get(ALIGNED) is True) != (
        layout.alignment is not None
    ):
        yield ALIGNED, layout.alignment is not None


def _with_config(
    tree: dict[str, Any], changed: dict[str, Any], placed: dict[str, Any]
) -> dict[str, Any]:
    config = tree.get(state_dict_keys.DS_CONFIG)
    config = config if isinstance(config, dict) else {}
    dropped = mics_keys(zero_optimization(config))
    kept = {key: value for key, value in zero_optimization(config).items() if key not in dropped}
    zero = {**kept, **changed}
    return {**tree, state_dict_keys.DS_CONFIG: {**config, "zero_optimization": zero, **placed}}


def needed_keys(source: LogicalState, layout: TargetLayout) -> dict[str, Any]:
    """Return the keys of `zero_optimization`, with their values, that the user must set in the
    resuming run, because the value differs from DeepSpeed's default or from the source's value.
    """
    needed = dict(_differing(source, layout))
    if layout.round_robin:
        needed[ROUND_ROBIN] = True
    if layout.alignment is not None:
        needed[ALIGNED] = True
    if layout.kind == STAGE_3 and layout.sub_group_size != DEFAULT_SUB_GROUP_SIZE:
        needed[SUB_GROUP_SIZE] = layout.sub_group_size
    return needed


def sub_group_size_of(logical: LogicalState) -> int:
    """Return `sub_group_size` in the run's configuration."""
    return number_of(logical.zero, SUB_GROUP_SIZE, DEFAULT_SUB_GROUP_SIZE)


def check_sub_groups(logical: LogicalState, ranks: int) -> None:
    """Check that the source's sub-groups for `ranks` ranks match its configuration.

    Raises:
        Unsupported: they do not match, so the sub-groups of the resuming run are unknown.
    """
    limit = sub_group_size_of(logical)
    for group in logical.groups:
        # Each sub-group has one part for each expert-parallel rank, all with equal shapes.
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
    """Return the sub-groups (stage 3) of one param group, for ranks that share it according to
    `placement`.

    Raises:
        Unsupported: a value that must be equal differs between parts that are merged.
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
    """Split the parameters of one param group into sub-groups, as stage 3 does. Return an empty
    list if the group has no parameters.

    A param group is one sub-group if the partitions of one rank have at most `sub_group_size`
    elements in all. Otherwise parameters are added to a sub-group one by one until it has at least
    `sub_group_size` elements; then the next sub-group begins. So the sub-groups depend on the
    number of ranks.

    The example of `partitioning/flat_layout.py`, w (2 x 3 elements), b (3) and v (5) on two ranks,
    has partitions of 3, 2 and 3 elements. With a `sub_group_size` of 6 or more, the group is one
    sub-group. With 5, w and b fill the first sub-group:

        sub-group 0    w0 w1 w2 b0 b1 | w3 w4 w5 b2 ..
        sub-group 1    v0 v1 v2 | v3 v4 ..

    On three ranks, the partitions have 2, 1 and 2 elements, 5 in all, so `sub_group_size` 5 gives
    one sub-group:

        sub-group 0    w0 w1 b0 v0 v1 | w2 w3 b1 v2 v3 | w4 w5 b2 v4 ..

    In the files, a sub-group is one tensor of `fp32_flat_groups`, one entry of the optimizer's
    state and one mapping of `param_shapes`; a param group lists the numbers of its sub-groups.

    Source: DeepSpeed `runtime/zero/stage3.py`: `_create_fp16_partitions_with_defragmentation`,
    `_create_fp16_sub_groups`.
    """
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
