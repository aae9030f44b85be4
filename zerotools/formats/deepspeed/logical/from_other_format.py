"""The logical state of a foreign checkpoint, from which a run of DeepSpeed resumes.

The trees are those that DeepSpeed 0.19.8 saves.

Weights are found by name, but masters and moments by place: the groups must list their parameters
in the order in which the engine's optimizer gets them.

Source: DeepSpeed `runtime/engine.py`: `_save_checkpoint`; `runtime/zero/stage_1_and_2.py`,
`stage3.py`: `state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.training import TrainingState
from zerotools.formats.deepspeed.logical.change_stage import (
    new_stored_tensor,
    weight_role,
    zero_stage,
)
from zerotools.formats.deepspeed.logical.logical_state import BASE_STATE, STATE, LogicalState
from zerotools.formats.deepspeed.logical.param_groups import ForeignCheckpoint, group_of
from zerotools.formats.deepspeed.schema.loss_scaler import scaler_of
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3
from zerotools.io.torchzip.pickle_values import Ordered, Size, StoredTensor
from zerotools.io.torchzip.walk import walk

VERSION = "0.19.8"
"""The DeepSpeed whose files these are."""


def logical_state_from(foreign: ForeignCheckpoint) -> LogicalState:
    """The logical state of a run of DeepSpeed that is where `foreign` is.

    Raises:
        BadRequest: a parameter of a group is not in the source, or its options lack one.
        Unsupported: parameters of a group have different kinds of state, or different steps.
    """
    known_storages: dict[str, bytes] = {}
    groups = [
        group_of(foreign, number, known_storages) for number in range(len(foreign.training.groups))
    ]
    module, weights, sources = _module(foreign)
    return LogicalState(
        kind=foreign.kind,
        stage=foreign.stage,
        groups=groups,
        model=_model_tree(foreign, module),
        optimizer={
            STATE: _inner(foreign),
            "ds_config": dict(foreign.config),
            "ds_version": VERSION,
        },
        shapes={name: Size(shape) for group in groups for name, shape in group.shapes.items()},
        frozen=foreign.frozen,
        precision=foreign.precision,
        weights=weights,
        weight_sources=sources,
        known_storages=known_storages,
    )


def _inner(foreign: ForeignCheckpoint) -> dict[str, Any]:
    """What the optimizer saves; the writer fills in what is None."""
    scaler = scaler_of(foreign.training.loss_scale, foreign.config, foreign.precision)
    common = {
        "loss_scaler": scaler.value,
        "dynamic_loss_scale": scaler.is_dynamic,
        "overflow": False,
    }
    if foreign.kind == STAGE_3:
        own: dict[str, Any] = {"partition_count": None, STATE: {}, "fp32_flat_groups": None}
        return {"zero_stage": zero_stage(3), **common, **own}
    clip = foreign.config.get("gradient_clipping")
    return {
        **common,
        **({"clip_grad": clip} if isinstance(clip, int | float) else {}),
        BASE_STATE: {},
        "single_partition_of_fp32_groups": None,
        "zero_stage": zero_stage(foreign.stage),
        "group_paddings": None,
        "partition_count": None,
        "ds_version": VERSION,
        "param_slice_mappings": None,
    }


def _module(
    foreign: ForeignCheckpoint,
) -> tuple[Ordered, dict[Key, StoredTensor], dict[Key, Tensor]]:
    """The weights as the model has them (stage 3: empty ones), what fills them, and from where."""
    module, trained, tensors = Ordered(), foreign.trained, foreign.source.tensors
    weights: dict[Key, StoredTensor] = {}
    sources: dict[Key, Tensor] = {}
    for key, tensor in tensors.items():
        if key.role not in ("param", "buffer"):
            continue
        is_weight = key.name in trained or key.name in foreign.frozen
        # What was not trained may be a buffer, which keeps its own type; loading casts the rest.
        dtype = foreign.precision if key.name in trained else tensor.dtype
        if foreign.kind == STAGE_3 and is_weight:
            module[key.name] = new_stored_tensor(f"empty-{key.name}", dtype, (0,))
            continue
        own = Key(key.name, weight_role(dtype)) if key.name in trained else key
        if not is_weight:
            own = Key(key.name, "buffer")
        copy = tensors.get(Key(key.name, "param16"))
        sources[own] = copy if copy is not None and copy.dtype == dtype else tensor
        module[key.name] = weights[own] = new_stored_tensor(
            f"whole-{key.name}", dtype, tensor.shape
        )
    for alias, name in foreign.source.aliases.items():
        if name in module:
            module[alias] = module[name]
    return module, weights, sources


def _model_tree(foreign: ForeignCheckpoint, module: Ordered) -> dict[str, Any]:
    training, frozen = foreign.training, foreign.frozen
    shapes: Ordered | None = Ordered({name: Size(each.shape) for name, each in frozen.items()})
    fragments: Ordered | None = Ordered()
    if foreign.stage == 2:
        fragments = Ordered({name: module[name] for name in frozen})
    elif foreign.stage == 1:
        shapes = fragments = None
    return {
        "module": module,
        "buffer_names": [key.name for key in foreign.source.tensors if _is_buffer(foreign, key)],
        "optimizer": None,
        "param_shapes": None,
        "frozen_param_shapes": shapes,
        "shared_params": dict(foreign.source.aliases),
        "frozen_param_fragments": fragments,
        "lr_scheduler": schedule_of(training),
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": training.skipped or 0,
        "global_steps": training.steps or 0,
        "global_samples": training.samples or 0,
        "dp_world_size": None,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": dict(foreign.config),
        "ds_version": VERSION,
        **dict(carried_client(training)),
    }


def _is_buffer(foreign: ForeignCheckpoint, key: Key) -> bool:
    is_other = key.name not in foreign.trained and key.name not in foreign.frozen
    return key.role in ("param", "buffer") and is_other


def schedule_of(training: TrainingState) -> Any:
    """The state of DeepSpeed's own schedulers; that of others is their owner's to keep."""
    saved = training.lr_scheduler
    return saved if isinstance(saved, Mapping) and "last_batch_iteration" in saved else None


def carried_client(training: TrainingState) -> Iterator[tuple[str, Any]]:
    """What the caller saved and no tensor is part of."""
    for key, value in training.client.items():
        if not any(isinstance(part, StoredTensor) for part in walk(value)):
            yield key, value
