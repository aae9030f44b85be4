"""What the user should know of a checkpoint that was laid out anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerotools.formats.deepspeed.logical.logical_state import LogicalState
from zerotools.formats.deepspeed.partitioning.mp_rank import MpRank
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.experts import DATA_FIRST
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout, needed_keys


def notes_on(
    column: MpRank, blueprint: LogicalState, wanted: TargetLayout, settings: ZeroSettings
) -> tuple[str, ...]:
    """Sentences on one model-parallel rank; `blueprint` is that of the source."""
    return (
        *_elastic(column, settings),
        *needed_settings(blueprint, wanted, settings),
        *_client_state(column, wanted),
        *_batch(column, wanted.ranks),
    )


def needed_settings(
    blueprint: LogicalState, wanted: TargetLayout, settings: ZeroSettings
) -> list[str]:
    """Keys of the configuration that the resuming run must have; none where it was given."""
    needed = needed_keys(blueprint, wanted)
    if settings.ds_config is not None:
        return []
    notes = [f'the resuming run needs "zero_optimization": {json.dumps(needed)}'] if needed else []
    if wanted.data_first:
        notes.append(f'the resuming run needs "{DATA_FIRST}": true')
    return notes


def _elastic(column: MpRank, settings: ZeroSettings) -> list[str]:
    if first_of(column.shards).is_rigid:
        return []
    origin = "the configuration given" if settings.ds_config else "the run's configuration"
    return [
        "elastic optimizer state is written as rigid, which DeepSpeed loads either way; it has no "
        f"options of param groups, so all have those of {origin}"
    ]


def _client_state(column: MpRank, wanted: TargetLayout) -> list[str]:
    """At stage 3 each rank saves what its caller gave it."""
    kept = ", ".join(column.model.client_state)
    if not kept or wanted.kind != STAGE_3:
        return []
    return [f"the caller's own state ({kept}) is that of rank 0 on every rank"]


def _batch(column: MpRank, ranks: int) -> list[str]:
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
