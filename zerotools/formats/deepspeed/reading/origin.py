"""What a DeepSpeed checkpoint says beside its tensors: origin, param groups, scaler, scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Opaque, Origin
from zerotools.formats.deepspeed.partitioning.mp_rank import MpRank
from zerotools.formats.deepspeed.reading.merge import MergedRanks
from zerotools.formats.deepspeed.schema.optim_states import OptimStates
from zerotools.formats.deepspeed.schema.tag import TagDirectory

UNNAMED_STATE = (
    "without ZeRO, DeepSpeed does not name the parameters of its optimizer state, so only the "
    "weights are read"
)


def present_optim_states(columns: Sequence[MpRank]) -> list[OptimStates]:
    """The optimizer files that are there, of all columns."""
    return [shard for column in columns for shard in column.shards if shard is not None]


def origin_of(
    path: Path,
    found: TagDirectory,
    columns: Sequence[MpRank],
    tensor_ranks: int,
    merged: MergedRanks,
) -> Origin:
    """Where the checkpoint comes from, and the facts that `inspect` shows."""
    model, shards = columns[0].model, present_optim_states(columns)
    stage = shards[0].stage if shards else 0
    notes = found.notes
    if not columns[0].groups and (shards or "optimizer" in model.fields):
        notes = (*notes, UNNAMED_STATE)
    return Origin(
        "deepspeed",
        path,
        framework_version=model.version,
        world_size=_world_size(columns),
        stage=stage,
        step=model.fields.maybe("global_steps", int),
        tag=found.name,
        other_tags=found.others,
        notes=notes,
        details={
            "optimizer_class": shards[0].kind if shards else None,
            "precision": _precision(columns[0]),
            "frozen": sorted(merged.frozen),
            "elastic": bool(shards) and not shards[0].is_rigid,
            "data_parallel_size": len(columns[0].shards) or model.data_parallel_size,
            "model_parallel_size": len(columns),
            "columns": columns,
            "tensor_ranks": tensor_ranks,
        },
    )


def _world_size(columns: Sequence[MpRank]) -> int | None:
    data_parallel = len(columns[0].shards) or columns[0].model.data_parallel_size
    return data_parallel * len(columns) if data_parallel else None


def _precision(column: MpRank) -> str:
    """The type of the run's weights: of `module`, whose stage-3 placeholders have it too."""
    names = {"float16": "fp16", "bfloat16": "bf16"}
    buffers = column.model.buffer_names or frozenset()
    for name, stored in (column.model.module or {}).items():
        if name not in buffers and stored.dtype.is_float:
            return names.get(stored.dtype.name, "fp32")
    roles = {key.role: tensor.dtype.name for key, tensor in column.tensors.items()}
    return names.get(roles.get("param16", roles.get("param", "")), "fp32")


def state_of(columns: Sequence[MpRank]) -> dict[str, Any]:
    """What belongs to the run beside its tensors; foreign objects stay opaque."""
    model, shards = columns[0].model, present_optim_states(columns)
    tree = model.fields.tree
    state: dict[str, Any] = {
        "lr_scheduler": tree.get("lr_scheduler"),
        "ds_config": tree.get("ds_config"),
        "skipped_steps": tree.get("skipped_steps"),
        "global_samples": tree.get("global_samples"),
        "client_state": model.client_state,
    }
    if shards:
        state["param_groups"] = _joined_groups(columns)
        state["loss_scaler"] = _plain(shards[0].fields.tree.get("loss_scaler"))
    return state


def _joined_groups(columns: Sequence[MpRank]) -> list[dict[str, Any]]:
    """The run's param groups: each model-parallel rank has its own parameters of every group."""
    joined: list[dict[str, Any]] = []
    for column in columns:
        shard = next((shard for shard in column.shards if shard is not None), None)
        for number, group in enumerate(_param_groups(column, shard) if shard else ()):
            if number == len(joined):
                joined.append(group)
            else:
                known = joined[number]["params"]
                joined[number]["params"] = list(dict.fromkeys([*known, *group["params"]]))
    return joined


def _param_groups(column: MpRank, shard: OptimStates) -> list[dict[str, Any]]:
    """torch's param groups with the names of their parameters instead of numbers."""
    names: dict[int, list[str]] = {}
    for group in column.groups:
        names.setdefault(group.number, []).extend(group.shapes)
    saved_groups = shard.param_groups or [{"params": [number]} for number in names]
    described = []
    for number, saved in enumerate(saved_groups):
        members = saved.get("params", [number])
        numbers = [m for m in members if type(m) is int] if isinstance(members, list) else []
        scalars = next((shard.scalars[m] for m in numbers if m < len(shard.scalars)), {})
        params = [name for m in numbers for name in names.get(m, ())]
        described.append({**saved, "state": dict(scalars), "params": params})
    return described


def _plain(value: Any) -> Any:
    """An opaque object's attributes as a dict, with its class; anything else as it is."""
    if isinstance(value, Opaque) and isinstance(value.state, Mapping):
        return {"class": f"{value.module}.{value.name}", **value.state}
    return value
