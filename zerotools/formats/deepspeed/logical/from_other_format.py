"""The logical state of a foreign checkpoint, for a run of DeepSpeed to resume from.

The trees are those that DeepSpeed 0.19.8 saves.

Weights are found by name, but masters and moments by position: the groups must list their
parameters in the order of the engine's optimizer.

Source: DeepSpeed `runtime/engine.py`: `_save_checkpoint`; `runtime/zero/stage_1_and_2.py`,
`stage3.py`: `state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.training import TrainingState
from zerotools.formats.deepspeed.logical.change_stage import (
    new_stored_tensor,
    weight_role,
)
from zerotools.formats.deepspeed.logical.logical_state import LogicalState
from zerotools.formats.deepspeed.logical.param_groups import ForeignCheckpoint, group_of
from zerotools.formats.deepspeed.schema import model_tree, optimizer_tree
from zerotools.formats.deepspeed.schema.loss_scaler import scaler_of
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3
from zerotools.io.torchzip.pickle_values import Ordered, Size, StoredTensor, walk


def logical_state_from(foreign: ForeignCheckpoint) -> LogicalState:
    """Return the logical state of a run of DeepSpeed that is where `foreign` is.

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
            optimizer_tree.STATE_DICT: _optimizer_state(foreign),
            model_tree.DS_CONFIG: dict(foreign.config),
            model_tree.DS_VERSION: model_tree.VERSION,
        },
        shapes={name: Size(shape) for group in groups for name, shape in group.shapes.items()},
        frozen=foreign.frozen,
        precision=foreign.precision,
        weights=weights,
        weight_sources=sources,
        known_storages=known_storages,
    )


def _optimizer_state(foreign: ForeignCheckpoint) -> dict[str, Any]:
    """Return the optimizer's state; the writer fills in values that are None."""
    scaler = scaler_of(foreign.training.loss_scale, foreign.config, foreign.precision).keys()
    if foreign.kind == STAGE_3:
        return optimizer_tree.zero3_state(scaler, {})
    clip = foreign.config.get("gradient_clipping")
    clip = clip if isinstance(clip, int | float) else None
    return optimizer_tree.zero12_state(scaler, clip, {}, foreign.stage, model_tree.VERSION)


def _module(
    foreign: ForeignCheckpoint,
) -> tuple[Ordered, dict[Key, StoredTensor], dict[Key, Tensor]]:
    """Return the weights as the model has them (stage 3: empty ones), what fills them, and from
    where."""
    module, trained, tensors = Ordered(), foreign.trained, foreign.source.tensors
    weights: dict[Key, StoredTensor] = {}
    sources: dict[Key, Tensor] = {}
    for key, tensor in tensors.items():
        if key.role not in ("param", "buffer"):
            continue
        is_weight = key.name in trained or key.name in foreign.frozen
        # An untrained tensor may be a buffer, which keeps its own type; loading casts the rest.
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
    values = {
        model_tree.MODULE: module,
        model_tree.BUFFER_NAMES: [
            key.name for key in foreign.source.tensors if _is_buffer(foreign, key)
        ],
        model_tree.FROZEN_SHAPES: shapes,
        model_tree.SHARED_PARAMS: dict(foreign.source.aliases),
        model_tree.FROZEN_FRAGMENTS: fragments,
        model_tree.LR_SCHEDULER: model_tree.schedule_of(training),
        model_tree.GLOBAL_SAMPLES: training.samples or 0,
        model_tree.PARALLEL_DIMENSIONS: {"pp_degree": 1, "tp_degree": 1},
        model_tree.DS_CONFIG: dict(foreign.config),
    }
    return {**model_tree.new_model_tree(training, values), **dict(carried_client(training))}


def _is_buffer(foreign: ForeignCheckpoint, key: Key) -> bool:
    is_other = key.name not in foreign.trained and key.name not in foreign.frozen
    return key.role in ("param", "buffer") and is_other


def carried_client(training: TrainingState) -> Iterator[tuple[str, Any]]:
    """Yield the caller's values without tensors."""
    for key, value in training.client.items():
        if not any(isinstance(part, StoredTensor) for part in walk(value)):
            yield key, value
