"""What a DeepSpeed checkpoint says beside its tensors: origin, param groups, scaler, scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Opaque, Origin
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.reading.merge import MergedRanks
from zerotools.formats.deepspeed.schema.model_states import run_values
from zerotools.formats.deepspeed.schema.optim_states import OptimStates
from zerotools.formats.deepspeed.schema.optimizer_tree import (
    LOSS_SCALER,
    PARAM_GROUPS,
    PARAMS,
    STATE,
    param_group,
)
from zerotools.formats.deepspeed.schema.tag import TagDirectory

UNNAMED_STATE = (
    "without ZeRO, DeepSpeed does not name the parameters of its optimizer state, so only the "
    "weights are read"
)


def present_optim_states(mp_shards: Sequence[MpShard]) -> list[OptimStates]:
    """The optimizer files that are there, of all model-parallel ranks."""
    return [optim for mp_shard in mp_shards for optim in mp_shard.optim_states if optim is not None]


def origin_of(
    path: Path,
    found: TagDirectory,
    mp_shards: Sequence[MpShard],
    tensor_ranks: int,
    merged: MergedRanks,
) -> Origin:
    """Where the checkpoint comes from, and the facts that `inspect` shows."""
    model, optim_states = mp_shards[0].model, present_optim_states(mp_shards)
    stage = optim_states[0].stage if optim_states else 0
    notes = found.notes
    if not mp_shards[0].groups and (optim_states or model.optimizer is not None):
        notes = (*notes, UNNAMED_STATE)
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
        details={
            "optimizer_class": optim_states[0].kind if optim_states else None,
            "precision": _precision(mp_shards[0]),
            "frozen": sorted(merged.frozen),
            "elastic": bool(optim_states) and not optim_states[0].is_rigid,
            "data_parallel_size": len(mp_shards[0].optim_states) or model.data_parallel_size,
            "model_parallel_size": len(mp_shards),
            "columns": mp_shards,
            "tensor_ranks": tensor_ranks,
        },
    )


def _world_size(mp_shards: Sequence[MpShard]) -> int | None:
    data_parallel = len(mp_shards[0].optim_states) or mp_shards[0].model.data_parallel_size
    return data_parallel * len(mp_shards) if data_parallel else None


def _precision(mp_shard: MpShard) -> str:
    """The type of the run's weights: of `module`, whose stage-3 placeholders have it too."""
    names = {"float16": "fp16", "bfloat16": "bf16"}
    buffers = mp_shard.model.buffer_names or frozenset()
    for name, stored in (mp_shard.model.module or {}).items():
        if name not in buffers and stored.dtype.is_float:
            return names.get(stored.dtype.name, "fp32")
    roles = {key.role: tensor.dtype.name for key, tensor in mp_shard.tensors.items()}
    return names.get(roles.get("param16", roles.get("param", "")), "fp32")


def state_of(mp_shards: Sequence[MpShard]) -> dict[str, Any]:
    """What belongs to the run beside its tensors; foreign objects stay opaque."""
    model, optim_states = mp_shards[0].model, present_optim_states(mp_shards)
    state: dict[str, Any] = {
        **run_values(model),
        "client_state": model.client_state,
    }
    if optim_states:
        state[PARAM_GROUPS] = _joined_groups(mp_shards)
        state[LOSS_SCALER] = _plain(optim_states[0].fields.tree.get(LOSS_SCALER))
    return state


def _joined_groups(mp_shards: Sequence[MpShard]) -> list[dict[str, Any]]:
    """The run's param groups: each model-parallel rank has its own parameters of every group."""
    joined: list[dict[str, Any]] = []
    for mp_shard in mp_shards:
        optim = next((optim for optim in mp_shard.optim_states if optim is not None), None)
        for number, group in enumerate(_param_groups(mp_shard, optim) if optim else ()):
            if number == len(joined):
                joined.append(group)
            else:
                known = joined[number][PARAMS]
                joined[number][PARAMS] = list(dict.fromkeys([*known, *group[PARAMS]]))
    return joined


def _param_groups(mp_shard: MpShard, optim: OptimStates) -> list[dict[str, Any]]:
    """torch's param groups with the names of their parameters instead of numbers."""
    names: dict[int, list[str]] = {}
    for group in mp_shard.groups:
        names.setdefault(group.number, []).extend(group.shapes)
    saved_groups = optim.param_groups or [param_group({}, [number]) for number in names]
    described = []
    for number, saved in enumerate(saved_groups):
        members = saved.get(PARAMS, [number])
        numbers = [m for m in members if type(m) is int] if isinstance(members, list) else []
        scalars = next((optim.scalars[m] for m in numbers if m < len(optim.scalars)), {})
        params = [name for m in numbers for name in names.get(m, ())]
        described.append({**saved, STATE: dict(scalars), PARAMS: params})
    return described


def _plain(value: Any) -> Any:
    """An opaque object's attributes as a dict, with its class; anything else as it is."""
    if isinstance(value, Opaque) and isinstance(value.state, Mapping):
        return {"class": f"{value.module}.{value.name}", **value.state}
    return value
