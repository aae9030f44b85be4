"""The trees of a universal checkpoint's files, which DeepSpeed's loaders of all stages accept.

From `optimizer_state.pt`, stages 1 and 2 read the scaler, `clip_grad`, `ds_version`, and the
options of each of `param_groups`. Stage 3 reads the scaler, `state[0]["step"]` for every sub-group,
and the options of the first group for all of them: so it gets only the options that are equal in
all groups, and keeps the resuming run's values for the others. Frozen weights and buffers, which no
loader reads, are in the model file, whole.

Source: DeepSpeed `runtime/base_optimizer.py` and `runtime/zero/stage3.py`,
`load_hp_checkpoint_state_from_checkpoint_dir[_stage3]`; `runtime/engine.py`, `_load_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Checkpoint, TensorRef
from zerotools.core.dtypes import FLOAT16
from zerotools.core.training import ParamGroup, TrainingState
from zerotools.formats.deepspeed.partitioning.native import DeepSpeedNative
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema import optimizer_tree as keys
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of, scaler_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.stacked_experts import StackedExperts
from zerotools.formats.deepspeed.universal.native import UniversalNative
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZERS,
    ORDER,
    UNKNOWN,
)
from zerotools.io.torchzip.pickle_values import Ordered, Size, Storage, StoredTensor, walk
from zerotools.io.torchzip.pt_file import TorchFile

_KEPT = (*keys.SCALER_KEYS, keys.CLIP_GRAD, keys.ZERO_STAGE, model_tree.DS_VERSION)


def source_model(source: Checkpoint) -> ModelStates | None:
    """Return the model file of a checkpoint of DeepSpeed."""
    native = source.native
    if isinstance(native, DeepSpeedNative):
        return native.mp_shards[0].model
    return native.model if isinstance(native, UniversalNative) else None


def source_experts(source: Checkpoint) -> StackedExperts:
    """Return AutoEP's experts in a checkpoint of DeepSpeed; those of other formats have none."""
    model = source_model(source)
    return model.stacked_experts if model is not None else StackedExperts()


def expert_tree(stored: StoredTensor, experts: int) -> dict[str, Any]:
    """Return the file of a weight of all of AutoEP's `experts`, or of its state."""
    return {"param": stored, "cat_dim": 0, "is_expert_param": True, "ep_num_experts": experts}


def source_optimizer(source: Checkpoint) -> tuple[TorchFile | None, Mapping[str, Any]]:
    """Return one of its optimizer files, and its values for all ranks; None if no file exists."""
    native = source.native
    if isinstance(native, DeepSpeedNative):
        present = [optim for optim in native.mp_shards[0].optim_states if optim is not None]
        return (present[0].file, present[0].fields.tree) if present else (None, {})
    if isinstance(native, UniversalNative):
        return native.saved.file, native.saved.tree
    return None, {}


def is_writable(value: Any, file: TorchFile | None) -> bool:
    """Return whether a tree can be pickled with the values that `file` holds."""
    return not any(
        isinstance(part, TensorRef) or (file is None and isinstance(part, StoredTensor | Storage))
        for part in walk(value)
    )


def universal_model_tree(
    source: Checkpoint,
    training: TrainingState,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    weights: Mapping[str, StoredTensor],
    client: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the tree of `mp_rank_00_model_states.pt`; `weights` are the values of its `module`."""
    model = source_model(source)
    known = dict(model.fields.tree) if model is not None else {}
    buffers = [key.name for key in source.tensors if key.role == "buffer"]
    schedule = training.lr_scheduler if model is not None else model_tree.schedule_of(training)
    counted = {} if training.samples is None else {model_tree.GLOBAL_SAMPLES: training.samples}
    experts = source_experts(source)
    kept = [model_tree.DATA_SAMPLER, model_tree.RANDOM_LTD, model_tree.DS_VERSION]
    if experts.layers:
        kept += model_tree.AUTOEP_KEYS
    values = {
        model_tree.MODULE: _module(model, weights, source.aliases),
        model_tree.BUFFER_NAMES: buffers,
        model_tree.PARAM_SHAPES: [
            Ordered({n: Size(experts.local_shape(n, shape)) for n, shape in group.items()})
            for group in shapes
        ],
        model_tree.SHARED_PARAMS: dict(source.aliases),
        model_tree.LR_SCHEDULER: schedule,
        **counted,
        model_tree.DP_WORLD_SIZE: source.origin.world_size or 1,
        model_tree.DS_CONFIG: dict(training.ds_config or {}),
        **{key: known[key] for key in (*kept, model_tree.DP_WORLD_SIZE) if key in known},
    }
    return model_tree.new_model_tree(training, values) | dict(client)


def _module(
    model: ModelStates | None, weights: Mapping[str, StoredTensor], aliases: Mapping[str, str]
) -> Ordered:
    """Return `module` in the source's order; a tied name is another name of the same tensor."""
    named = dict(weights) | {
        alias: weights[name] for alias, name in aliases.items() if name in weights
    }
    order = [name for name in (model.module if model is not None else None) or () if name in named]
    return Ordered({name: named[name] for name in dict.fromkeys([*order, *named])})


def optimizer_tree(source: Checkpoint, training: TrainingState, step: Any) -> dict[str, Any]:
    """Return `zero/optimizer_state.pt`; `step` is that of the first parameter, None without one."""
    _, saved = source_optimizer(source)
    kept = (
        _KEPT if loss_scaler_of(saved) == training.loss_scaler else _KEPT[len(keys.SCALER_KEYS) :]
    )
    known = {key: saved[key] for key in kept if key in saved}
    if training.loss_scale is not None and keys.LOSS_SCALER not in known:
        scaler = scaler_of(training.loss_scale, training.ds_config or {}, FLOAT16)
        known |= {keys.LOSS_SCALER: scaler.value, keys.DYNAMIC_LOSS_SCALE: scaler.is_dynamic}
    model = source_model(source)
    version = (model.version if model is not None else None) or model_tree.VERSION
    known.setdefault(model_tree.DS_VERSION, version)
    groups = [keys.param_group(group.options, [n]) for n, group in enumerate(training.groups)]
    common = keys.param_group(common_options(training.groups), [])
    state = {} if step is None else {0: {"step": step}}
    return {
        **known,
        ORDER: OPTIMIZERS if training.is_ordered else UNKNOWN,
        keys.PARAM_GROUPS: groups,
        keys.STATE_DICT: keys.torch_state(state, [common]),
    }


def common_options(groups: Sequence[ParamGroup]) -> dict[str, Any]:
    """Return the options that all groups have, and have alike."""
    first = groups[0].options if groups else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in group.options and group.options[key] == value for group in groups)
    }
