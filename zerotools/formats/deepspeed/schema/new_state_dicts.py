"""Make state dicts as DeepSpeed 0.19.8 saves them: values, and the order of their keys.

`state_dict_keys` lists the keys, their nesting and the sources in DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.training_state import TrainingState
from zerotools.formats.deepspeed.schema.state_dict_keys import (
    AUTOEP_KEYS,
    BASE_STATE,
    CLIP_GRAD,
    DATA_SAMPLER,
    DP_WORLD_SIZE,
    DS_VERSION,
    FROZEN_FRAGMENTS,
    FROZEN_SHAPES,
    GLOBAL_STEPS,
    GROUP_PADDINGS,
    MODEL_KEYS,
    MP_WORLD_SIZE,
    OPTIMIZER,
    PARAM_GROUPS,
    PARAM_SHAPES,
    PARAMS,
    PARTITION_COUNT,
    PARTITIONS,
    RANDOM_LTD,
    SKIPPED_STEPS,
    SLICE_MAPPINGS,
    STATE,
    STATE_DICT,
    SUB_GROUPS,
    ZERO_STAGE,
)
from zerotools.io.torchzip.pickle_values import Ordered

_FRAGMENT = Opaque("deepspeed.utils.tensor_fragment", "fragment_address")


def zero_stage(stage: int) -> Opaque:
    """Return the member of DeepSpeed's enum `ZeroStageEnum` for a stage, as a pickle stores it."""
    return Opaque("deepspeed.runtime.zero.config", "ZeroStageEnum", (stage,), called=True)


def zero12_state(
    scaler: Mapping[str, Any], clip_grad: float | None, base: Any, stage: int, version: Any
) -> dict[str, Any]:
    """Return `optimizer_state_dict` as DeepSpeedZeroOptimizer (stages 1 and 2) saves it. The
    writer replaces the values that are None.
    """
    return {
        **scaler,
        **({} if clip_grad is None else {CLIP_GRAD: clip_grad}),
        BASE_STATE: base,
        PARTITIONS: None,
        ZERO_STAGE: zero_stage(stage),
        GROUP_PADDINGS: None,
        PARTITION_COUNT: None,
        DS_VERSION: version,
        SLICE_MAPPINGS: None,
    }


def zero3_state(scaler: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return `optimizer_state_dict` as DeepSpeedZeroOptimizer_Stage3 saves it. The writer replaces
    the values that are None.
    """
    return {
        ZERO_STAGE: zero_stage(3),
        **scaler,
        PARTITION_COUNT: None,
        STATE_DICT: base,
        SUB_GROUPS: None,
    }


def torch_state(state: Mapping[int, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state dict of a torch optimizer that has flat buffers as its parameters; `state`
    is keyed by the number of the buffer.
    """
    return {STATE: state, PARAM_GROUPS: list(groups)}


def param_group(options: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Return a param group in torch's form: `options`, with `params` as the list of the numbers of
    its flat buffers.
    """
    return {**options, PARAMS: list(numbers)}


def fragment_class(mappings: Sequence[Mapping[Any, Any]]) -> Opaque:
    """Return the class that the source uses for the position of a parameter in a partition. In some
    versions of DeepSpeed, this class is in another module.
    """
    places = (value for mapping in mappings for value in mapping.values())
    return next((value for value in places if isinstance(value, Opaque)), _FRAGMENT)


def slice_mapping(kind: Opaque, places: Iterator[tuple[str, int, int]]) -> Ordered:
    """Return the entry of one group in `param_slice_mappings`. The entry maps parameter names to
    objects of class `kind`, each with a start and a number of elements.
    """
    return Ordered(
        {
            name: Opaque(kind.module, kind.name, state={"numel": count, "start": start})
            for name, start, count in places
        }
    )


VERSION = "0.19.8"
"""The DeepSpeed version that the written trees are made for."""


def new_model_tree(training: TrainingState, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a model file for a run with the state `training`, with its keys in
    DeepSpeed's order.

    `values` has the values of some keys. Any other key that DeepSpeed always writes gets a value
    from `training` or a default, such as None.
    """
    found = {
        OPTIMIZER: None,
        PARAM_SHAPES: None,
        FROZEN_SHAPES: None,
        FROZEN_FRAGMENTS: None,
        DATA_SAMPLER: None,
        RANDOM_LTD: None,
        SKIPPED_STEPS: training.skipped or 0,
        GLOBAL_STEPS: training.steps or 0,
        DP_WORLD_SIZE: None,
        MP_WORLD_SIZE: 1,
        DS_VERSION: VERSION,
        **values,
    }
    return {key: found[key] for key in (*MODEL_KEYS, *AUTOEP_KEYS) if key in found}


def schedule_of(training: TrainingState) -> Any:
    """Return the state of the learning rate schedule if it is one of DeepSpeed's schedules, else
    None.
    """
    saved = training.lr_scheduler
    return saved if isinstance(saved, Mapping) and "last_batch_iteration" in saved else None
