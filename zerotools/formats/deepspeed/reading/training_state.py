"""Read the training state and the origin of a DeepSpeed checkpoint.

DeepSpeed stores a number such as `step` once for each param group (stage 3: for each sub-group), as
a 0-d tensor or a plain number, depending on the optimizer. The training state has one value for
each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin
from zerotools.core.dtypes import DType
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.flat_groups import is_round_robin, optimizer_order
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.reading.check_same_save import extra_step_note
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import (
    STAGE,
    computed_type,
    mics_keys,
    optimizer_name,
    zero_optimization,
)
from zerotools.formats.deepspeed.schema.find_tag import TagDirectory
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import OptimStates, first_of, scalar_of
from zerotools.formats.deepspeed.schema.state_dict_keys import numbers_of, options_of, param_group
from zerotools.formats.torch_optimizers import NUMBERED_STATE


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the training state, from the files of all model-parallel ranks, which differ only in
    their parameters.

    Raises:
        BadFile: a number in the optimizer state, such as `step`, is missing from the files.
    """
    native = native_of(checkpoint)
    mp_shards = native.mp_shards
    model = mp_shards[0].model
    tree = model.fields.tree
    named = [mp_shard for mp_shard in mp_shards if mp_shard.groups]
    present = present_optim_states(mp_shards)
    return TrainingState(
        groups=_joined([_groups(mp_shard) for mp_shard in named]),
        scalars={key: scalar for mp_shard in named for key, scalar in _scalars(mp_shard)},
        frozen=native.frozen,
        precision=checkpoint.origin.precision,
        optimizer=optimizer_name(model.ds_config),
        optimizer_wrapper=present[0].kind if present else None,
        steps=_count(tree.get(state_dict_keys.GLOBAL_STEPS)),
        skipped=_count(tree.get(state_dict_keys.SKIPPED_STEPS)),
        samples=_count(tree.get(state_dict_keys.GLOBAL_SAMPLES)),
        lr_scheduler=tree.get(state_dict_keys.LR_SCHEDULER),
        loss_scaler=loss_scaler_of(present[0].fields.tree) if present else None,
        ds_config=model.ds_config if isinstance(model.ds_config, Mapping) else None,
        client=model.client_state,
        # The groups of a rank that lost a file are not known.
        knows_frozen=len(named) == len(mp_shards) or not checkpoint.problems,
    )


def _groups(mp_shard: MpShard) -> list[ParamGroup]:
    optim = first_of(mp_shard.optim_states)
    round_robin = is_round_robin(mp_shard.model, optim)
    names: dict[int, dict[str, None]] = {}
    for flat in mp_shard.groups:  # one per expert-parallel rank may have the same number
        ordered = optimizer_order(flat, round_robin=round_robin)
        names.setdefault(flat.number, {}).update(dict.fromkeys(ordered))
    saved = optim.param_groups or [param_group({}, [number]) for number in names]
    return [
        ParamGroup(
            tuple(name for number in numbers_of(group) for name in names.get(number, ())),
            options_of(group),
        )
        for group in saved
    ]


def _joined(of_mp_shards: Sequence[Sequence[ParamGroup]]) -> tuple[ParamGroup, ...]:
    """Return the param groups of the whole model: each group has the parameters of this group on
    all model-parallel ranks.
    """
    count = max(map(len, of_mp_shards), default=0)
    joined = []
    for number in range(count):
        parts = [groups[number] for groups in of_mp_shards if number < len(groups)]
        names = dict.fromkeys(name for part in parts for name in part.params)
        joined.append(ParamGroup(tuple(names), parts[0].options))
    return tuple(joined)


def _scalars(mp_shard: MpShard) -> Iterator[tuple[Key, Scalar]]:
    optim = first_of(mp_shard.optim_states)
    for group in mp_shard.groups:
        for role, value in optim.scalars[group.number].items():
            scalar = scalar_of(optim, value)
            if scalar is not None:
                yield from ((Key(name, role), scalar) for name in group.shapes)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


UNNAMED_STATE = (
    "without ZeRO, DeepSpeed does not name the parameters of its optimizer state, so only the "
    "weights are read"
)


def present_optim_states(mp_shards: Sequence[MpShard]) -> list[OptimStates]:
    """Return the optimizer files that exist, of all model-parallel ranks."""
    return [optim for mp_shard in mp_shards for optim in mp_shard.optim_states if optim is not None]


def origin_of(
    path: Path,
    found: TagDirectory,
    mp_shards: Sequence[MpShard],
) -> Origin:
    """Return the origin of the checkpoint: its format, its stage and other facts that `inspect`
    shows.
    """
    model, optim_states = mp_shards[0].model, present_optim_states(mp_shards)
    stage = optim_states[0].stage if optim_states else _configured_stage(model)
    notes = found.notes
    if not mp_shards[0].groups and (optim_states or len(mp_shards) > 1):
        notes = (*notes, UNNAMED_STATE) if optim_states or model.optimizer else notes
    elif not mp_shards[0].groups and model.optimizer is not None:
        notes = (*notes, NUMBERED_STATE)
    if optim_states and (said := extra_step_note(model, optim_states[0])) is not None:
        notes = (*notes, said)
    return Origin(
        "deepspeed",
        path,
        framework_version=model.version,
        world_size=_world_size(mp_shards),
        stage=stage,
        step=model.global_steps,
        tag=found.name,
        other_tags=found.others,
        notes=notes,
        precision=_precision(mp_shards[0]),
    )


def _configured_stage(model: ModelStates) -> int:
    """Return the ZeRO stage in the configuration of the run, for a checkpoint without optimizer
    files.
    """
    stage = zero_optimization(model.ds_config).get(STAGE)
    return stage if model.groups is not None and isinstance(stage, int) else 0


def _world_size(mp_shards: Sequence[MpShard]) -> int | None:
    model = mp_shards[0].model
    data_parallel = len(mp_shards[0].optim_states) or model.data_parallel_size
    if mics_keys(zero_optimization(model.ds_config)):  # several ranks have the same partitions
        data_parallel = model.data_parallel_size or data_parallel
    return data_parallel * len(mp_shards) if data_parallel else None


def _precision(mp_shard: MpShard) -> DType:
    """Return the dtype of the run's weights, from the tensors in `module`. The placeholders of
    stage 3 have this dtype too.
    """
    buffers = mp_shard.model.buffer_names or frozenset()
    for name, stored in (mp_shard.model.module or {}).items():
        if name not in buffers and stored.dtype.is_float:
            return computed_type(stored.dtype)
    types = {key.role: tensor.dtype for key, tensor in mp_shard.tensors.items()}
    return computed_type(types.get("param16", types.get("param")))
