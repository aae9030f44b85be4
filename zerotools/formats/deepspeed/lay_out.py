"""A DeepSpeed checkpoint for another number of ranks, as DeepSpeed itself would have saved it.

The output is a save directory: the tag with its files, `latest`, and what lay around the tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Target
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.lay_out_flat import lay_out_flat
from zerotools.formats.deepspeed.lay_out_sliced import lay_out_sliced
from zerotools.formats.deepspeed.order import ROUND_ROBIN, is_round_robin, zero_config
from zerotools.formats.deepspeed.shards import STAGE_3, first_of
from zerotools.formats.deepspeed.sub_groups import DEFAULT_SIZE, SUB_GROUP_SIZE, size_of
from zerotools.formats.deepspeed.surroundings import around

COLUMNS = "columns"
QUANTIZED = "zero_quantized_nontrainable_weights"
_RANK = re.compile(r"pp_rank_\d+_")


def lay_out(source: Checkpoint, destination: Path, *, world_size: int) -> Target:
    """Lay `source`, as the reader of DeepSpeed gave it, out for `world_size` ranks.

    Raises:
        BadRequest: `world_size` is less than 1.
        Unsupported: a checkpoint without ZeRO, with model-parallel ranks or with experts.
        BadFile: its files disagree.
    """
    if world_size < 1:
        raise BadRequest(f"a checkpoint is laid out for at least 1 rank, not {world_size}")
    column = _column(source)
    shard = first_of(column.shards)
    tag, model = source.root.name, column.model.file.name
    names = [f"{tag}/{_RANK.sub(f'pp_rank_{r}_', shard.file.name)}" for r in range(world_size)]
    if shard.kind == STAGE_3:
        models = [f"{tag}/{_RANK.sub(f'pp_rank_{r}_', model)}" for r in range(world_size)]
        files = lay_out_sliced(column, world_size, models, names)
    else:
        files = lay_out_flat(column, world_size, f"{tag}/{model}", names)
    plans, notes = around(source, same_ranks=world_size == len(column.shards))
    plans |= files.plans
    checkpoint = replace(
        source,
        root=destination,
        tensors=files.tensors,
        origin=replace(
            source.origin, path=destination, world_size=world_size, notes=(), details={}
        ),
        files={name: plan.size for name, plan in plans.items()},
        state={},
        companions={},
        problems=(),
    )
    notes = (*notes, *_settings(column), *_client_state(column), *_batch(column, world_size))
    return Target(checkpoint, plans, notes=notes, carried=files.carried)


def _column(source: Checkpoint) -> Column:
    """The one column of a checkpoint that can be laid out again."""
    columns: list[Column] = source.origin.details[COLUMNS]
    column, path = columns[0], source.root
    if not column.groups:
        raise Unsupported(
            f"{path} has no ZeRO partitions that name their parameters, so there is nothing to "
            "distribute over other ranks"
        )
    if len(columns) > 1 or column.model.module is None:
        raise Unsupported(
            f"{path} has pipeline or tensor-parallel ranks ({len(columns)}), which zerotools does "
            "not reshard"
        )
    if any(group.geometry.ranks != len(column.shards) for group in column.groups) or (
        column.model.fields.tree.get("num_experts")
    ):
        raise Unsupported(f"{path} has experts, which zerotools does not reshard")
    if column.model.data_parallel_size not in (None, len(column.shards)):
        raise Unsupported(
            f"{path} is of {column.model.data_parallel_size} ranks in groups of "
            f"{len(column.shards)} (MiCS), which zerotools does not reshard"
        )
    if zero_config(column.model).get(QUANTIZED) and column.model.frozen_shapes:
        raise Unsupported(
            f"{path} has {QUANTIZED}: its frozen weights are quantized, and the scales are not in "
            "the checkpoint; save it without"
        )
    if column.model.groups is None:
        raise Unsupported(
            f"{path} was saved by DeepSpeed {column.model.version}, before 0.6.0; load it with "
            "DeepSpeed and save it again"
        )
    return column


def _settings(column: Column) -> list[str]:
    """Keys of the configuration that the resuming run must have, as this one had."""
    shard, wanted = first_of(column.shards), []
    if is_round_robin(column.model, shard):
        wanted.append(f'"{ROUND_ROBIN}": true')
    if shard.kind == STAGE_3 and size_of(column.model) != DEFAULT_SIZE:
        wanted.append(f'"{SUB_GROUP_SIZE}": {size_of(column.model)}')
    if not wanted:
        return []
    needed = ", ".join(wanted)
    return [f'the resuming run needs "zero_optimization": {{{needed}}}, as this one']


def _client_state(column: Column) -> list[str]:
    """At stage 3 each rank saves what its caller gave it."""
    kept = ", ".join(column.model.client_state)
    if not kept or first_of(column.shards).kind != STAGE_3:
        return []
    return [f"the caller's own state ({kept}) is that of rank 0 on every rank"]


def _batch(column: Column, ranks: int) -> list[str]:
    """What keeps the global batch, and so the schedule, equal."""
    before = len(column.shards)
    config: Any = column.model.fields.tree.get("ds_config")
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    found = [config.get(key) for key in keys] if isinstance(config, Mapping) else []
    numbers = [value for value in found if isinstance(value, int)]
    if ranks == before or len(numbers) < len(keys):
        return []
    micro, steps = numbers
    total = micro * steps * before
    return [
        f"the batch was {micro} (micro batch) x {steps} (accumulation) x {before} ranks = {total}; "
        f"choose the first two so that it stays {total} with {ranks}"
    ]
