"""The trees of `*_model_states.pt` and `*_optim_states.pt`: keys, nesting and order in DeepSpeed
0.19.8.

`*_model_states.pt`:

    module                          names to weights; stage 3: placeholders; a pipeline: None
    buffer_names                    the names in `module` that are buffers
    optimizer                       the optimizer of a run without ZeRO, else None
    param_shapes                    [{name: shape}]: the order of each flat buffer
    frozen_param_shapes             {name: shape}; None at stage 1
    shared_params                   tied names: {alias: name}
    frozen_param_fragments          {name: tensor}: whole at stage 2, a partition at stage 3
    lr_scheduler ... ds_version     the run: scheduler, counters, ranks, configuration

`*_optim_states.pt`:

    stages 1 and 2, BF16_Optimizer              stage 3
    optimizer_state_dict                        optimizer_state_dict
      loss_scaler, dynamic_loss_scale             zero_stage
      overflow, clip_grad                         loss_scaler, dynamic_loss_scale, overflow
      base_optimizer_state                        partition_count
        state: {group: {exp_avg, step ...}}       optimizer_state_dict
        param_groups: [{params: [group]}]           state: {sub-group: {exp_avg, step ...}}
      single_partition_of_fp32_groups               param_groups: [{params: [sub-groups]}]
      zero_stage, group_paddings                  fp32_flat_groups
      partition_count, ds_version               ds_config, ds_version
      param_slice_mappings
    ds_config, ds_version

Elastic state has a list instead of `base_optimizer_state`, with a dict for each group.
BF16_Optimizer has no `zero_stage`. `param_alignment_paddings` exists if parameters are aligned.
With AutoEP, stage 3 has `ds_zero_partition_groups` after `partition_count`: the ranks of each
sub-group. A tensor on NVMe has no elements here (`partitioning/read_nvme_swap_files.py`).

Source: DeepSpeed `runtime/engine.py`: `_save_checkpoint`; `runtime/zero/stage_1_and_2.py`,
`bf16_optimizer.py`: `state_dict`; `runtime/zero/stage3.py`: `_rigid_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.training_state import TrainingState
from zerotools.io.torchzip.pickle_values import Ordered

STATE_DICT = "optimizer_state_dict"
BASE_STATE = "base_optimizer_state"
ELASTIC_STEP = "base_optimizer_state_step"
PARTITIONS = "single_partition_of_fp32_groups"
SUB_GROUPS = "fp32_flat_groups"
INTERLEAVED = "local_sub_partitions_of_fp32_groups"
ZERO_STAGE = "zero_stage"
PARTITION_COUNT = "partition_count"
ZERO3_GROUPS = "ds_zero_partition_groups"
GROUP_PADDINGS = "group_paddings"
ALIGNMENT_PADDINGS = "param_alignment_paddings"
SLICE_MAPPINGS = "param_slice_mappings"
LOSS_SCALER = "loss_scaler"
DYNAMIC_LOSS_SCALE = "dynamic_loss_scale"
OVERFLOW = "overflow"
CLIP_GRAD = "clip_grad"
SCALER_KEYS = (LOSS_SCALER, DYNAMIC_LOSS_SCALE, OVERFLOW)

STATE = "state"
PARAM_GROUPS = "param_groups"
PARAMS = "params"
SWAP_NAME = "ds_id"
"""The attribute that holds the name of the swap file, in the tensors of a sub-group on NVMe."""
_NOT_OPTIONS = (PARAMS, "param_names", STATE)


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a param group in torch's form, without `params`."""
    return {str(key): value for key, value in group.items() if key not in _NOT_OPTIONS}


def numbers_of(group: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a param group's flat buffers (torch's `params`), which are keys of
    `state`."""
    saved = group.get(PARAMS)
    return [number for number in (saved if isinstance(saved, list) else ()) if type(number) is int]


def slice_mappings(saved: Any) -> list[Mapping[Any, Any]]:
    """Return `param_slice_mappings` of an optimizer's state: for each group, the position of each
    parameter in the group's partition, keyed by name. A damaged mapping is returned as empty.
    """
    mappings = saved.get(SLICE_MAPPINGS) if isinstance(saved, Mapping) else None
    found = mappings if isinstance(mappings, list) else []
    return [each if isinstance(each, Mapping) else {} for each in found]


def numel_of(place: Any) -> int:
    """Return the number of elements of a parameter in a partition, from its entry in
    `param_slice_mappings`; 0 if the entry is damaged.
    """
    return _number(place, "numel")


def start_of(place: Any) -> int:
    """Return the index at which a parameter begins in a partition, from its entry in
    `param_slice_mappings`; 0 if the entry is damaged.
    """
    return _number(place, "start")


def _number(place: Any, name: str) -> int:
    state = place.state if isinstance(place, Opaque) else None
    number = state.get(name) if isinstance(state, Mapping) else None
    return number if type(number) is int else 0


MODULE = "module"
BUFFER_NAMES = "buffer_names"
OPTIMIZER = "optimizer"
PARAM_SHAPES = "param_shapes"
FROZEN_SHAPES = "frozen_param_shapes"
SHARED_PARAMS = "shared_params"
FROZEN_FRAGMENTS = "frozen_param_fragments"
LR_SCHEDULER = "lr_scheduler"
LAST_RATES = "_last_lr"
"""The key in the state of torch's schedules that has the current learning rate of each param
group.
"""
DATA_SAMPLER = "data_sampler"
RANDOM_LTD = "random_ltd"
SKIPPED_STEPS = "skipped_steps"
GLOBAL_STEPS = "global_steps"
GLOBAL_SAMPLES = "global_samples"
DP_WORLD_SIZE = "dp_world_size"
MP_WORLD_SIZE = "mp_world_size"
PARALLEL_DIMENSIONS = "checkpoint_parallel_dimensions"
DS_CONFIG = "ds_config"
DS_VERSION = "ds_version"
TENSOR_PARALLEL_INFO = "universal_checkpoint_info"
NUM_EXPERTS = "num_experts"
AUTOEP_LAYERS = "ds_autoep_layers"
AUTOEP_LAYERS_BEFORE = "autoep_layers"
FOLDING = "folding"
AUTOEP_KEYS = (NUM_EXPERTS, AUTOEP_LAYERS, AUTOEP_LAYERS_BEFORE, TENSOR_PARALLEL_INFO)
"""The keys of a model file that describe AutoEP's experts."""

MODEL_KEYS = (
    MODULE, BUFFER_NAMES, OPTIMIZER, PARAM_SHAPES, FROZEN_SHAPES, SHARED_PARAMS, FROZEN_FRAGMENTS,
    LR_SCHEDULER, DATA_SAMPLER, RANDOM_LTD, SKIPPED_STEPS, GLOBAL_STEPS, GLOBAL_SAMPLES,
    DP_WORLD_SIZE, MP_WORLD_SIZE, PARALLEL_DIMENSIONS, DS_CONFIG, DS_VERSION,
)  # fmt: skip
"""The keys of a new model file in DeepSpeed's order, except `AUTOEP_KEYS`."""
OWN_KEYS = frozenset(
    {
        *MODEL_KEYS, TENSOR_PARALLEL_INFO, NUM_EXPERTS, AUTOEP_LAYERS, AUTOEP_LAYERS_BEFORE,
        FOLDING, "sparse_tensor_module_names", "csr_tensor_module_names",
    }
)  # fmt: skip
"""The keys that DeepSpeed saves itself; every other key is the caller's `client_state`."""


# Make state dicts as DeepSpeed 0.19.8 saves them: values, and the order of their keys.
#
# `state_dict_keys` lists the keys, their nesting and the sources in DeepSpeed.

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
