"""Convert a logical state to another ZeRO stage, or from BF16_Optimizer to a ZeRO stage.

Stages 1 and 2 write the same files, except for the frozen parameters that stage 2 lists. The files
of stage 3 have partitions of frozen parameters, and no weights. So a conversion to stage 3 leaves
the weights out, and a conversion from stage 3 casts them from the masters.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` and `stage3.py`: `state_dict`,
`_rigid_state_dict`; `runtime/engine.py`: `_get_zero_frozen_param_attributes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.boxes import row_major_strides
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.loss_scaler import saved_scaler
from zerotools.formats.deepspeed.schema.model_states import as_listed
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3
from zerotools.io.torchzip.pickle_values import Ordered, Size, Storage, StoredTensor
from zerotools.io.torchzip.tree_tensors import as_tensor

COPY = "module"
"""The role of the weights of an fp32 run; their values are equal to the masters."""


def change_stage(logical: LogicalState, kind: str, stage: int | None) -> LogicalState:
    """Return the logical state with the trees that the files of `kind` and `stage` need. The
    writer partitions it later.
    """
    if (logical.kind, logical.stage) == (kind, stage):
        return logical
    if kind == STAGE_3:
        return _to_zero3(logical)
    made = logical if logical.kind != STAGE_3 else _with_weights(logical)
    # At stage 0, this key of the model file has the optimizer.
    model = {**made.model, **_frozen(made, stage), state_dict_keys.OPTIMIZER: None}
    inner = (
        _zero12_state(made, stage) if logical.kind != kind else _staged(made.optimizer_state, stage)
    )
    optimizer = {**made.optimizer, state_dict_keys.STATE_DICT: inner}
    return replace(made, kind=kind, stage=stage, model=model, optimizer=optimizer)


def new_stored_tensor(key: str, dtype: DType, shape: tuple[int, ...]) -> StoredTensor:
    """Return a new tensor, alone in a new storage called `key`. The key must be unique in the tree
    of the file, and must not be a number.
    """
    numel = Tensor(dtype, shape, ()).numel
    return StoredTensor(Storage(key, dtype, numel), dtype, 0, shape, row_major_strides(shape))


def weight_role(dtype: DType) -> str:
    """Return the role of a trained weight of `dtype` that has a master: `param16` for a 16-bit
    dtype; else `COPY`, because the weight repeats its master.
    """
    return "param16" if dtype.bits == 16 else COPY


def _staged(inner: Mapping[str, Any], stage: int | None) -> dict[str, Any]:
    new = dict(inner)
    if stage is not None and state_dict_keys.ZERO_STAGE in new:
        is_plain = isinstance(new[state_dict_keys.ZERO_STAGE], int)
        new[state_dict_keys.ZERO_STAGE] = stage if is_plain else state_dict_keys.zero_stage(stage)
    return new


def _zero12_state(logical: LogicalState, stage: int | None) -> dict[str, Any]:
    """Return the state of another optimizer class in the form of DeepSpeedZeroOptimizer (stages 1
    and 2).
    """
    saved, model = logical.optimizer_state, logical.model
    clip = saved.get(state_dict_keys.CLIP_GRAD, _clipping(model.get(state_dict_keys.DS_CONFIG)))
    base = saved.get(state_dict_keys.BASE_STATE, saved.get(state_dict_keys.STATE_DICT))
    version = logical.optimizer.get(
        state_dict_keys.DS_VERSION, model.get(state_dict_keys.DS_VERSION)
    )
    scaler = saved_scaler(saved)
    return state_dict_keys.zero12_state(scaler, clip, base, stage or 2, version)


def _clipping(config: Any) -> float | None:
    """Return the gradient norm limit from the configuration, or None if the engine's default is to
    be used."""
    value = config.get("gradient_clipping") if isinstance(config, Mapping) else None
    return value if isinstance(value, int | float) else None


def _frozen(logical: LogicalState, stage: int | None) -> dict[str, Any]:
    """Return the shapes and the values of the frozen parameters, under the keys that the model file
    of stages 1 and 2 has for these two lists. None means that a list is left out.

    DeepSpeed looks up every frozen parameter of its model in a list that exists. So both lists are
    left out if the run was saved with `exclude_frozen_parameters`.
    """
    module = as_listed(logical.model.get(state_dict_keys.MODULE) or {}, logical.frozen)
    there = [name for name in logical.frozen if name in module]
    if stage != 2 or not there:
        return {state_dict_keys.FROZEN_SHAPES: None, state_dict_keys.FROZEN_FRAGMENTS: None}
    return {
        state_dict_keys.FROZEN_SHAPES: Ordered({n: Size(logical.frozen[n].shape) for n in there}),
        state_dict_keys.FROZEN_FRAGMENTS: Ordered({name: module[name] for name in there}),
    }


def _to_zero3(logical: LogicalState) -> LogicalState:
    saved = logical.optimizer_state
    base = saved[state_dict_keys.BASE_STATE]
    inner = state_dict_keys.zero3_state(
        saved_scaler(saved), base if isinstance(base, Mapping) else {}
    )
    frozen = {name: Size(tensor.shape) for name, tensor in logical.frozen.items()}
    model = {
        **logical.model,
        state_dict_keys.MODULE: _placeholders(logical),
        state_dict_keys.FROZEN_SHAPES: Ordered(frozen) if frozen else None,
        state_dict_keys.FROZEN_FRAGMENTS: Ordered() if frozen else None,
        state_dict_keys.OPTIMIZER: None,
    }
    source_tensors = {
        key: tensor for key, tensor in logical.source_tensors.items() if key.role != "param16"
    }
    return replace(
        logical,
        kind=STAGE_3,
        stage=3,
        model=model,
        optimizer={**logical.optimizer, state_dict_keys.STATE_DICT: inner},
        source_tensors=source_tensors,
    )


def _placeholders(logical: LogicalState) -> Ordered:
    """Return `module` with each parameter replaced by an empty tensor, as in the files of stage 3;
    buffers stay.
    """
    buffers = {key.name for key in logical.source_tensors if key.role == "buffer"}
    module: Ordered = logical.model[state_dict_keys.MODULE]
    made = Ordered()
    for (name, value), listed in zip(module.items(), as_listed(module, buffers), strict=True):
        tensor = as_tensor(value)
        is_weight = tensor is not None and listed not in buffers
        made[name] = (
            new_stored_tensor(f"empty-{name}", tensor.dtype, (0,))
            if is_weight and tensor
            else value
        )
    made.attributes = getattr(module, "attributes", None)
    return made


def _with_weights(logical: LogicalState) -> LogicalState:
    """Return `module` with real weights instead of the placeholders of a stage-3 checkpoint: cast
    from the masters, or merged from the partitions of a frozen parameter.

    If a frozen parameter was excluded from the save, a placeholder can remain under its tied name.
    That placeholder does not become a weight.
    """
    aliases: Mapping[str, str] = logical.model.get(state_dict_keys.SHARED_PARAMS) or {}
    masters = {name for group in logical.groups for name in group.shapes}
    buffers = {key.name for key in logical.source_tensors if key.role == "buffer"}
    module: Ordered = logical.model[state_dict_keys.MODULE]
    made, weights, sources = Ordered(), {}, {}
    every = as_listed(module, [*masters, *logical.frozen, *aliases, *buffers])
    for (name, value), listed in zip(module.items(), every, strict=True):
        canonical = aliases.get(listed, listed)
        tensor = as_tensor(value)
        if tensor is None or canonical not in masters | logical.frozen.keys():
            if tensor is None or listed in buffers:
                made[name] = value
            continue
        source = logical.source_tensors[Key(canonical, "param")]
        role = weight_role(tensor.dtype) if canonical in masters else "param"
        weights[Key(canonical, role)] = new_stored_tensor(
            f"whole-{canonical}", tensor.dtype, source.shape
        )
        sources[Key(canonical, role)] = source
        made[name] = weights[Key(canonical, role)]
    made.attributes = getattr(module, "attributes", None)
    return replace(
        logical,
        model={**logical.model, state_dict_keys.MODULE: made},
        weights=weights,
        weight_sources=sources,
    )
