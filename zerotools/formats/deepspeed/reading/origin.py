"""The origin of a DeepSpeed checkpoint: the facts that hold for all of its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotools.core.checkpoint import Origin
from zerotools.core.dtypes import DType
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.reading.consistency import began_before
from zerotools.formats.deepspeed.schema.ds_config import (
    STAGE,
    computed_type,
    mics_keys,
    zero_optimization,
)
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import OptimStates
from zerotools.formats.deepspeed.schema.tag import TagDirectory
from zerotools.formats.torch_optimizers import NUMBERED_STATE

UNNAMED_STATE = (
    "without ZeRO, DeepSpeed does not name the parameters of its optimizer state, so only the "
    "weights are read"
)


def present_optim_states(mp_shards: Sequence[MpShard]) -> list[OptimStates]:
    """Return the optimizer files that are there, of all model-parallel ranks."""
    return [optim for mp_shard in mp_shards for optim in mp_shard.optim_states if optim is not None]


def origin_of(
    path: Path,
    found: TagDirectory,
    mp_shards: Sequence[MpShard],
) -> Origin:
    """Return the origin of the checkpoint, with the facts that `inspect` shows."""
    model, optim_states = mp_shards[0].model, present_optim_states(mp_shards)
    stage = optim_states[0].stage if optim_states else _said_stage(model)
    notes = found.notes
    if not mp_shards[0].groups and (optim_states or len(mp_shards) > 1):
        notes = (*notes, UNNAMED_STATE) if optim_states or model.optimizer else notes
    elif not mp_shards[0].groups and model.optimizer is not None:
        notes = (*notes, NUMBERED_STATE)
    if optim_states and (said := began_before(model, optim_states[0])) is not None:
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


def _said_stage(model: ModelStates) -> int:
    """Return the stage of a run without optimizer files, by its configuration."""
    stage = zero_optimization(model.ds_config).get(STAGE)
    return stage if model.groups is not None and isinstance(stage, int) else 0


def _world_size(mp_shards: Sequence[MpShard]) -> int | None:
    model = mp_shards[0].model
    data_parallel = len(mp_shards[0].optim_states) or model.data_parallel_size
    if mics_keys(zero_optimization(model.ds_config)):  # some of them have the same partitions
        data_parallel = model.data_parallel_size or data_parallel
    return data_parallel * len(mp_shards) if data_parallel else None


def _precision(mp_shard: MpShard) -> DType:
    """Return the type of the run's weights: that of `module`, also of its stage-3 placeholders."""
    buffers = mp_shard.model.buffer_names or frozenset()
    for name, stored in (mp_shard.model.module or {}).items():
        if name not in buffers and stored.dtype.is_float:
            return computed_type(stored.dtype)
    types = {key.role: tensor.dtype for key, tensor in mp_shard.tensors.items()}
    return computed_type(types.get("param16", types.get("param")))
