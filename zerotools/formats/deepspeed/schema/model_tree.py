"""The tree of a `*_model_states.pt`: its keys, in the order of DeepSpeed 0.19.8.

    module                          names to weights; stage 3: placeholders; a pipeline: None
    buffer_names                    those of `module` that are buffers
    optimizer                       the optimizer of a run without ZeRO, else None
    param_shapes                    [{name: shape}]: the order of each flat buffer
    frozen_param_shapes             {name: shape}; None at stage 1
    shared_params                   tied names: {alias: name}
    frozen_param_fragments          {name: tensor}: whole at stage 2, a partition at stage 3
    lr_scheduler ... ds_version     the run: scheduler, counters, ranks, configuration

Source: DeepSpeed `runtime/engine.py`: `_save_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.training import TrainingState

MODULE = "module"
BUFFER_NAMES = "buffer_names"
OPTIMIZER = "optimizer"
PARAM_SHAPES = "param_shapes"
FROZEN_SHAPES = "frozen_param_shapes"
SHARED_PARAMS = "shared_params"
FROZEN_FRAGMENTS = "frozen_param_fragments"
LR_SCHEDULER = "lr_scheduler"
LAST_RATES = "_last_lr"
"""The key of a scheduler of torch with the learning rate of each param group."""
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

_ORDER = (
    MODULE, BUFFER_NAMES, OPTIMIZER, PARAM_SHAPES, FROZEN_SHAPES, SHARED_PARAMS, FROZEN_FRAGMENTS,
    LR_SCHEDULER, DATA_SAMPLER, RANDOM_LTD, SKIPPED_STEPS, GLOBAL_STEPS, GLOBAL_SAMPLES,
    DP_WORLD_SIZE, MP_WORLD_SIZE, PARALLEL_DIMENSIONS, DS_CONFIG, DS_VERSION,
)  # fmt: skip
OWN_KEYS = frozenset(
    {
        *_ORDER, TENSOR_PARALLEL_INFO, NUM_EXPERTS, AUTOEP_LAYERS, AUTOEP_LAYERS_BEFORE,
        FOLDING, "sparse_tensor_module_names", "csr_tensor_module_names",
    }
)  # fmt: skip
"""The keys that DeepSpeed saves itself; every other key is the caller's `client_state`."""

VERSION = "0.19.8"
"""The DeepSpeed version that trees are written for."""


def new_model_tree(training: TrainingState, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a run that is at `training`, in DeepSpeed's order. `values` are the values
    of its keys; other keys that DeepSpeed always writes are None, or as for one rank."""
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
    return {key: found[key] for key in (*_ORDER, *AUTOEP_KEYS) if key in found}


def schedule_of(training: TrainingState) -> Any:
    """Return the state of DeepSpeed's schedulers, or None for others."""
    saved = training.lr_scheduler
    return saved if isinstance(saved, Mapping) and "last_batch_iteration" in saved else None
