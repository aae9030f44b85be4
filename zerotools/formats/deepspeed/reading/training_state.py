"""The training state of a DeepSpeed checkpoint, in words that all formats share.

DeepSpeed keeps numbers such as `step` once per group (stage 3: per sub-group), either a 0-d tensor
or a plain number, by optimizer; here each parameter has a separate value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.training import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.native import native_of
from zerotools.formats.deepspeed.partitioning.parameter_order import is_round_robin, optimizer_order
from zerotools.formats.deepspeed.reading.origin import present_optim_states
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema.ds_config import optimizer_name
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of
from zerotools.formats.deepspeed.schema.optim_states import first_of, scalar_of
from zerotools.formats.deepspeed.schema.optimizer_tree import numbers_of, options_of, param_group


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the state from the files of all model-parallel ranks; these differ only in parameters.

    Raises:
        BadFile: a number of the optimizer's state is in no file.
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
        steps=_count(tree.get(model_tree.GLOBAL_STEPS)),
        skipped=_count(tree.get(model_tree.SKIPPED_STEPS)),
        samples=_count(tree.get(model_tree.GLOBAL_SAMPLES)),
        lr_scheduler=tree.get(model_tree.LR_SCHEDULER),
        loss_scaler=loss_scaler_of(present[0].fields.tree) if present else None,
        ds_config=model.ds_config if isinstance(model.ds_config, Mapping) else None,
        client=model.client_state,
    )


def _groups(mp_shard: MpShard) -> list[ParamGroup]:
    optim = first_of(mp_shard.optim_states)
    round_robin = is_round_robin(mp_shard.model, optim)
    names: dict[int, dict[str, None]] = {}
    for flat in mp_shard.groups:  # several of one number: each expert-parallel rank's experts
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
    """Join the groups of model-parallel ranks; each rank has other parameters of every group."""
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
