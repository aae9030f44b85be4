"""What the files of a universal checkpoint hold, so that DeepSpeed's loaders of all stages take it.

Stages 1 and 2 read of `optimizer_state.pt` the scaler, `clip_grad`, `ds_version`, and the options
of each of `param_groups`. Stage 3 reads the scaler, `state[0]["step"]` for every sub-group, and the
options of the first group for all of them: so it is given only the options that are equal in all,
and leaves the others as the resuming run has them. Frozen weights and buffers, which no loader
reads, are in the model file, whole.

Source: DeepSpeed `runtime/base_optimizer.py` and `runtime/zero/stage3.py`,
`load_hp_checkpoint_state_from_checkpoint_dir[_stage3]`; `runtime/engine.py`, `_load_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Checkpoint, TensorRef
from zerotools.core.dtypes import FLOAT16
from zerotools.core.training import ParamGroup, TrainingState
from zerotools.formats.deepspeed.logical.from_other_format import VERSION, schedule_of
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.reading.training_state import loss_scale_of
from zerotools.formats.deepspeed.schema.loss_scaler import scaler_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import first_of
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZERS,
    ORDER,
    UNKNOWN,
    UniversalState,
)
from zerotools.io.torchzip.pickle_values import Ordered, Size, Storage, StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.walk import walk

_SCALER = ("loss_scaler", "dynamic_loss_scale", "overflow")
_KEPT = (*_SCALER, "clip_grad", "zero_stage", "ds_version")


def source_model(source: Checkpoint) -> ModelStates | None:
    """The model file of a checkpoint of DeepSpeed."""
    details = source.origin.details
    if source.origin.format == "deepspeed":
        mp_shards: Sequence[MpShard] = details["columns"]
        return mp_shards[0].model
    model: ModelStates | None = details.get("model")
    return model if source.origin.format == "universal" else None


def source_optimizer(source: Checkpoint) -> tuple[TorchFile | None, Mapping[str, Any]]:
    """One of its optimizer files, and what that says for all ranks."""
    details = source.origin.details
    if source.origin.format == "deepspeed":
        mp_shards: Sequence[MpShard] = details["columns"]
        optim = first_of(mp_shards[0].optim_states)
        return optim.file, optim.fields.tree
    if source.origin.format == "universal":
        saved: UniversalState = details["universal_state"]
        return saved.file, saved.tree
    return None, {}


def is_writable(value: Any, file: TorchFile | None) -> bool:
    """Whether a tree can be pickled with what `file` holds of it."""
    return not any(
        isinstance(part, TensorRef) or (file is None and isinstance(part, StoredTensor | Storage))
        for part in walk(value)
    )


def model_tree(
    source: Checkpoint,
    training: TrainingState,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    weights: Mapping[str, StoredTensor],
    client: Mapping[str, Any],
) -> dict[str, Any]:
    """`mp_rank_00_model_states.pt`; `weights` are what it has of `module`."""
    model = source_model(source)
    known = dict(model.fields.tree) if model is not None else {}
    buffers = [key.name for key in source.tensors if key.role == "buffer"]
    own = {
        "module": _module(model, weights, source.aliases),
        "buffer_names": buffers,
        "optimizer": None,
        "param_shapes": [
            Ordered({name: Size(shape) for name, shape in group.items()}) for group in shapes
        ],
        "frozen_param_shapes": None,
        "shared_params": dict(source.aliases),
        "frozen_param_fragments": None,
        "lr_scheduler": training.lr_scheduler if model is not None else schedule_of(training),
        "data_sampler": known.get("data_sampler"),
        "random_ltd": known.get("random_ltd"),
        "skipped_steps": training.skipped or 0,
        "global_steps": training.steps or 0,
        **({} if training.samples is None else {"global_samples": training.samples}),
        "dp_world_size": known.get("dp_world_size", source.origin.world_size or 1),
        "mp_world_size": 1,
        "ds_config": dict(training.ds_config or {}),
        "ds_version": known.get("ds_version", VERSION),
    }
    return own | dict(client)


def _module(
    model: ModelStates | None, weights: Mapping[str, StoredTensor], aliases: Mapping[str, str]
) -> Ordered:
    """In the order of the source's own; a tied name is another of the same tensor."""
    named = dict(weights) | {
        alias: weights[name] for alias, name in aliases.items() if name in weights
    }
    order = [name for name in (model.module if model is not None else None) or () if name in named]
    return Ordered({name: named[name] for name in dict.fromkeys([*order, *named])})


def optimizer_tree(source: Checkpoint, training: TrainingState, step: Any) -> dict[str, Any]:
    """`zero/optimizer_state.pt`; `step` is that of the first parameter, None where it has none."""
    _, saved = source_optimizer(source)
    kept = _KEPT if loss_scale_of(saved) == training.loss_scale else _KEPT[len(_SCALER) :]
    known = {key: saved[key] for key in kept if key in saved}
    if training.loss_scale is not None and "loss_scaler" not in known:
        scaler = scaler_of(training.loss_scale, training.ds_config or {}, FLOAT16)
        known |= {"loss_scaler": scaler.value, "dynamic_loss_scale": scaler.is_dynamic}
    model = source_model(source)
    known.setdefault("ds_version", (model.version if model is not None else None) or VERSION)
    groups = [{**group.options, "params": [number]} for number, group in enumerate(training.groups)]
    common = {**common_options(training.groups), "params": []}
    state = {} if step is None else {0: {"step": step}}
    return {
        **known,
        ORDER: OPTIMIZERS if training.is_ordered else UNKNOWN,
        "param_groups": groups,
        "optimizer_state_dict": {"state": state, "param_groups": [common]},
    }


def common_options(groups: Sequence[ParamGroup]) -> dict[str, Any]:
    """The options that all groups have, and have alike."""
    first = groups[0].options if groups else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in group.options and group.options[key] == value for group in groups)
    }
