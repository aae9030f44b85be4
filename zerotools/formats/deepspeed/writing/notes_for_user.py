"""Notes for the user on a DeepSpeed checkpoint with a new layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings, mics_keys
from zerotools.formats.deepspeed.schema.expert_parallel import DATA_FIRST
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of
from zerotools.formats.deepspeed.schema.tag_file_names import name_for_rank
from zerotools.formats.deepspeed.writing.target_layout import TargetLayout, needed_keys


def notes_on(
    mp_shard: MpShard, logical: LogicalState, layout: TargetLayout, settings: ZeroSettings
) -> tuple[str, ...]:
    """Return notes for the user on the output of one model-parallel rank. `logical` is the logical
    state of the source.
    """
    return (
        *_elastic(mp_shard, settings),
        *needed_settings(logical, layout, settings),
        *_client_state(mp_shard, layout),
        *_batch(mp_shard, layout.dp_size),
        *_sequence_ranks(mp_shard),
        *_mics(logical),
        *_swapped(mp_shard),
    )


def needed_settings(
    logical: LogicalState, layout: TargetLayout, settings: ZeroSettings
) -> list[str]:
    """Return sentences that tell the user which settings the resuming run must have. The list is
    empty if the user passed a configuration.
    """
    needed = needed_keys(logical, layout)
    if settings.ds_config is not None:
        return []
    notes = [f'the resuming run needs "zero_optimization": {json.dumps(needed)}'] if needed else []
    if layout.data_first:
        notes.append(f'the resuming run needs "{DATA_FIRST}": true')
    return notes


def _elastic(mp_shard: MpShard, settings: ZeroSettings) -> list[str]:
    if first_of(mp_shard.optim_states).is_rigid:
        return []
    origin = "the configuration given" if settings.ds_config else "the run's configuration"
    return [
        "elastic optimizer state is written in the rigid form, which DeepSpeed loads with either "
        "setting; elastic state has no options of param groups, so all groups get the options of "
        f"{origin}"
    ]


def _client_state(mp_shard: MpShard, layout: TargetLayout) -> list[str]:
    """Return a note, at stage 3, that every rank gets the client state of rank 0. At other stages,
    DeepSpeed does not save the client state of each rank, and the list is empty.
    """
    kept = ", ".join(mp_shard.model.client_state)
    if not kept or layout.kind != STAGE_3:
        return []
    return [f"every rank gets the client state ({kept}) of rank 0"]


def _batch(mp_shard: MpShard, ranks: int) -> list[str]:
    """Return a note with settings for `ranks` ranks that keep the global batch size, and so the
    schedule, unchanged."""
    before = mp_shard.model.data_parallel_size or len(mp_shard.optim_states)
    config: Any = mp_shard.model.ds_config
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    found = [config.get(key) for key in keys] if isinstance(config, Mapping) else []
    numbers = [value for value in found if type(value) is int and value > 0]
    if ranks == before or len(numbers) < len(keys):
        return []
    micro, steps = numbers
    total = micro * steps * before
    was = f"the batch was {micro} (micro batch) x {steps} (accumulation) x {before} ranks = {total}"
    if total % ranks:
        return [
            (
                f"{was}; with {ranks} ranks it cannot stay the same, because {total} is not a "
                f"multiple of {ranks}"
            )
        ]
    own = total // ranks
    most = max(n for n in range(1, min(micro, own) + 1) if not own % n)
    return [f"{was}; {most} x {own // most} x {ranks} ranks = {total} keeps it"]


def _sequence_ranks(mp_shard: MpShard) -> list[str]:
    """Return a note if the run's file names use the number of a sequence-parallel rank as
    `mp_rank`."""
    model, names = mp_shard.model, [o.file.name for o in mp_shard.optim_states if o is not None]
    own = {name_for_rank(name, 0) for name in names}
    if model.model_parallel_size != 1 or len(own) < 2:
        return []
    return [
        "all files are named mp_rank_00, so resume with DeepSpeed 0.19.8 or newer: with sequence "
        f"parallelism, DeepSpeed {model.version or 'that saved the run'} would look for "
        f"{', '.join(names[1:2])}"
    ]


def _mics(logical: LogicalState) -> list[str]:
    keys = mics_keys(logical.zero)
    if not keys:
        return []
    return [
        "the output is for stage 3 over all ranks, without MiCS: leave "
        f"{', '.join(sorted(keys))} out of the configuration of the resuming run"
    ]


def _swapped(mp_shard: MpShard) -> list[str]:
    """Return a note if the source's optimizer state was offloaded to NVMe.

    A run that offloads to NVMe loads `offloaded_tensors` and ignores optimizer files.
    """
    if not any(swapped for o in mp_shard.optim_states if o is not None for swapped in o.swapped):
        return []
    return [
        "optimizer state from NVMe is written into optimizer files, which DeepSpeed loads with "
        '"offload_optimizer": {"device": "cpu"} or without it; with "nvme" it does not'
    ]
