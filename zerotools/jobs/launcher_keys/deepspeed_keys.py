"""The keys of DeepSpeed's JSON, as DeepSpeed 0.19 reads them, and the meaning of each key for a
job.

Source of names, types and defaults: deepspeed/runtime/{config,precision_config}.py.
"""

from __future__ import annotations

from typing import Any

from zerotools.jobs.launcher_keys.config_key import ConfigKey, KeyAction, ValueKind

_GATHERING = "changes how DeepSpeed gathers weights, not the result"
_LOSSY = "compresses the data that DeepSpeed communicates; the engine torch does not compress"
_STAGING = "changes how DeepSpeed moves offloaded data, not the result"


_COMMUNICATION = "changes how DeepSpeed communicates, not the result"
_MEMORY = "changes how DeepSpeed lays out memory, not the result"
_REPORTS = "controls the output and logs of DeepSpeed; zerotools writes its own reports"
_CHECKPOINTS = "controls how DeepSpeed writes checkpoints; zerotools writes them itself"
_COMPILES = "controls how DeepSpeed compiles"
CLIPS_ELSEWHERE = "optimizer.params.max_grad_norm"
NEVER_TAKEN: dict[str, ConfigKey] = {
    f"{section}.{name}": ConfigKey(
        ValueKind.ANY, KeyAction.IGNORED, "bf16 has no loss scale; left out"
    )
    for section in ("bf16", "bfloat16")
    for name in (
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
        "auto_cast",
    )
}
"""Keys of `fp16` that do not exist in `bf16`.

People copy them to `bf16`, but DeepSpeed does not start with them.
"""
_OF_COMPILING = (
    "kwargs",
    "autoep_non_moe",
    "free_activation",
    "free_activation_threshold",
    "offload_activation",
    "offload_activation_pin_memory",
    "offload_opt_states",
    "double_buffer",
    "symmetric_memory",
    "debug_log",
    "offload_parameters",
    "sync_before_reduce",
    "sync_after_reduce",
    "sync_before_allgather",
    "sync_after_allgather",
    "keep_int_input_tensors",
    "keep_all_input_tensors",
    "passes",
)
_HOW_LAYERS_ARE_CUT = (
    *("dtype", "tp_overlap_comm", "keep_module_on_host", "injection_policy_tuple"),
    *("partition_config", "preset_model", "vocab_parallel_lm_head", "vocab_parallel_ce_backend"),
    *("tp.tp_grain_size", "tensor_parallel.tp_grain_size"),
)
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
}
"""The job file's name of an optimizer -> DeepSpeed's defaults in `optimizer.params`, for parameters
that are also keys of the job file.

From deepspeed/ops/adam/fused_adam.py; the defaults of SGD are from torch.
"""
MUON_DEFAULTS: dict[str, Any] = {"betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0.0}
MUON_RATES = {"muon_lr": 0.02, "adam_lr": 3e-4}
"""The learning rates of the two parts of Muon (Muon itself, and Adam) if `lr` is not set.

MUON_DEFAULTS has its other defaults; its momentum is 0.95:
deepspeed/runtime/zero/muon/original_muon.py.
"""
TORCH_ADAM_DECAY = 0.01
"""The default weight decay of torch's AdamW (torch/optim/adamw.py).

DeepSpeed uses it if `torch_adam` is set.
"""


def _zero(
    why: str, kind: ValueKind, *, stage3: bool = False, **defaults: Any
) -> dict[str, ConfigKey]:
    """Declare the keys of `zero_optimization` in `defaults` (name -> default), which all have the
    type `kind`. A name with the prefix `stage3_` is also declared without this prefix.

    If `stage3` is true, the keys have an effect only at stage 3.
    """
    return {
        f"zero_optimization.{spelling}": ConfigKey(kind, KeyAction.TUNING, why, default, stage3)
        for name, default in defaults.items()
        for spelling in dict.fromkeys([name, name.removeprefix("stage3_")])
        if spelling != "gather_fp16_weights_on_model_save"
    }


ZERO_KEYS: dict[str, ConfigKey] = {
    **_zero(
        _COMMUNICATION,
        ValueKind.BOOL,
        allgather_partitions=True,
        reduce_scatter=True,
        overlap_comm=True,
        use_multi_rank_bucket_allreduce=True,
    ),
    **_zero(
        _COMMUNICATION,
        ValueKind.COUNT,
        allgather_bucket_size=500_000_000,
        reduce_bucket_size=500_000_000,
        zero_hpz_partition_size=1,
    ),
    **_zero(
        _GATHERING,
        ValueKind.COUNT,
        stage3=True,
        stage3_prefetch_bucket_size=50_000_000,
        stage3_param_persistence_threshold=100_000,
        stage3_model_persistence_threshold=2**63 - 1,
        stage3_max_live_parameters=1_000_000_000,
        stage3_max_reuse_distance=1_000_000_000,
        stage3_module_granularity_threshold=0,
    ),
    # templates of stage 2 have this key, too; DeepSpeed ignores it there
    **_zero(_GATHERING, ValueKind.COUNT, sub_group_size=1_000_000_000),
    **_zero(
        _GATHERING,
        ValueKind.BOOL,
        stage3=True,
        stage3_use_all_reduce_for_fetch_params=False,
        stage3_allgather_sequential=False,
    ),
    **_zero(
        "checkpoints are sharded; zerotools consolidate makes 16-bit weights of one",
        ValueKind.BOOL,
        stage3=True,
        stage3_gather_16bit_weights_on_model_save=False,
        stage3_gather_fp16_weights_on_model_save=False,
    ),
    **_zero(
        _MEMORY,
        ValueKind.BOOL,
        contiguous_gradients=True,
        round_robin_gradients=False,
        parameter_alignment=False,
        memory_efficient_linear=True,
        override_module_apply=True,
        ignore_unused_parameters=True,
        legacy_stage1=False,
        load_from_fp32_weights=True,
        elastic_checkpoint=False,
        pipeline_loading_checkpoint=False,
        compute_grad_norm=True,
        log_trace_cache_warnings=False,
        enable_sanity_checks=False,
        save_muon_momentum_buffer_in_memory=False,
        cpu_offload_use_pin_memory=True,
    ),
    **_zero(
        _LOSSY,
        ValueKind.BOOL,
        zero_quantized_weights=False,
        zero_quantized_nontrainable_weights=False,
        zero_quantized_gradients=False,
    ),
    **_zero(_GATHERING, ValueKind.ANY, leaf_module=None),
    **{
        f"zero_optimization.offload_{part}.{name}": ConfigKey(
            kind, KeyAction.TUNING, _STAGING, default
        )
        for part, count in (("optimizer", 4), ("param", 5))
        for name, kind, default in (
            ("pin_memory", ValueKind.BOOL, True),
            ("nvme_path", ValueKind.TEXT, None),
            ("buffer_count", ValueKind.COUNT, count),
            ("buffer_size", ValueKind.COUNT, 100_000_000),
            ("max_in_cpu", ValueKind.COUNT, 1_000_000_000),
            ("pipeline", ValueKind.BOOL, False),
            ("pipeline_read", ValueKind.BOOL, False),
            ("pipeline_write", ValueKind.BOOL, False),
            ("fast_init", ValueKind.BOOL, False),
            ("ratio", ValueKind.NUMBER, 1.0),
            ("super_offload", ValueKind.BOOL, False),
            ("cpuadam_cores_perc", ValueKind.NUMBER, 0.8),
        )
    },
}


def _read(kind: ValueKind, *names: str) -> dict[str, ConfigKey]:
    return {name: ConfigKey(kind, KeyAction.READ) for name in names}


def _all(kind: ValueKind, action: KeyAction, why: str, *names: str) -> dict[str, ConfigKey]:
    return {name: ConfigKey(kind, action, why) for name in names}


KEYS: dict[str, ConfigKey] = {
    **_read(
        ValueKind.COUNT,
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization.stage",
    ),
    **_read(ValueKind.NUMBER, "gradient_clipping"),
    "fp16.loss_scale": ConfigKey(ValueKind.NUMBER, KeyAction.READ, default=0),  # "dynamic"
    "fp16.initial_scale_power": ConfigKey(ValueKind.COUNT, KeyAction.READ, default=16),
    "fp16.loss_scale_window": ConfigKey(ValueKind.COUNT, KeyAction.READ, default=1000),
    "fp16.hysteresis": ConfigKey(ValueKind.COUNT, KeyAction.READ, default=2),
    "fp16.consecutive_hysteresis": ConfigKey(ValueKind.BOOL, KeyAction.READ, default=False),
    "fp16.min_loss_scale": ConfigKey(ValueKind.COUNT, KeyAction.READ, default=1),
    **_read(
        ValueKind.BOOL,
        "fp16.enabled",
        "bf16.enabled",
        "bfloat16.enabled",
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_param",
        "zero_optimization.cpu_offload_params",
    ),
    **_read(
        ValueKind.TEXT,
        "optimizer.type",
        "scheduler.type",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
    ),
    **_read(
        ValueKind.NUMBER,
        "optimizer.params.lr",
        "optimizer.params.eps",
        "optimizer.params.weight_decay",
        "optimizer.params.momentum",
        "optimizer.params.muon_lr",
        "optimizer.params.adam_lr",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio",
    ),
    **_read(ValueKind.NUMBER, "zero_optimization.mics_shard_size"),  # -1 if it is off
    **_read(ValueKind.NUMBERS, "optimizer.params.betas"),
    **_read(ValueKind.BOOL, "optimizer.params.adam_w_mode"),
    **_read(
        ValueKind.COUNT,
        "sequence_parallel_size",
        "tensor_parallel.autotp_size",
        "tensor_parallel.tp.tp_size",
        "tensor_parallel.tensor_parallel.tp_size",
    ),
    **_read(ValueKind.BOOL, "wandb.enabled"),
    **_read(ValueKind.TEXT, "wandb.project", "wandb.team", "wandb.group"),
    **_read(
        ValueKind.COUNT,
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_num_steps",
    ),
    **_read(ValueKind.TEXT, "scheduler.params.warmup_type"),
    **ZERO_KEYS,
    **_all(
        ValueKind.BOOL,
        KeyAction.TUNING,
        _COMMUNICATION,
        "prescale_gradients",
        "disable_allgather",
        "dataloader_drop_last",
        "disable_python_gc",
        "use_data_before_expert_parallelism",
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.TUNING,
        "the engine torch reduces gradients in fp32",
        "communication_data_type",
        "data_types",
        "gradient_predivide_factor",
        "seq_parallel_communication_data_type",
    ),
    **_all(
        ValueKind.BOOL,
        KeyAction.TUNING,
        "lets DeepSpeed use any optimizer; the engine torch has a fixed list",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "optimizer.legacy_fusion",
    ),
    # some configs have the name of an implementation; for DeepSpeed any text means true
    "optimizer.params.torch_adam": ConfigKey(
        ValueKind.ANY,
        KeyAction.TUNING,
        "the engine torch uses torch's AdamW and its default weight decay",
    ),
    "optimizer.params.ns_method": ConfigKey(
        ValueKind.TEXT,
        KeyAction.TUNING,
        "the engine torch iterates on the matrix itself, in bf16, as torch's Muon does",
    ),
    **_all(
        ValueKind.BOOL,
        KeyAction.TUNING,
        "the engine torch chooses the types of inputs itself",
        "fp16.auto_cast",
        "bf16.immediate_grad_update",
        "bf16.check_grad_overflow",
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.TUNING,
        "has an effect only on models that call DeepSpeed's checkpointing",
        "activation_checkpointing",
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.TUNING,
        "controls how DeepSpeed offloads to disk; zerotools has its own way",
        "aio",
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.TUNING,
        "the model's plan in transformers chooses the layers that ranks share",
        *(f"tensor_parallel.{name}" for name in _HOW_LAYERS_ARE_CUT),
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.FEATURE,
        "replaces layers with kernels for inference",
        "tensor_parallel.replace_with_kernel_inject",
        "tensor_parallel.kernel_inject",
    ),
    **_read(
        ValueKind.BOOL,
        "compile.enabled",
        "compile.disable",
        "compile.deepcompile",
    ),
    **_read(ValueKind.TEXT, "compile.backend"),
    **_all(
        ValueKind.ANY,
        KeyAction.TUNING,
        _COMPILES,
        *(f"compile.{name}" for name in _OF_COMPILING),
    ),
    **_all(ValueKind.ANY, KeyAction.FEATURE, "changes the training", CLIPS_ELSEWHERE),
    **NEVER_TAKEN,
    **_all(
        ValueKind.ANY,
        KeyAction.IGNORED,
        _REPORTS,
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "log_level",
        "flops_profiler",
        "timers",
        "comms_logger",
        "tensorboard",
        "csv_monitor",
        "comet",
        "monitor_config",
        "vocabulary_size",
    ),
    **_all(
        ValueKind.ANY, KeyAction.IGNORED, _CHECKPOINTS, "checkpoint", "nebula", "datastates_ckpt"
    ),
    **_all(
        ValueKind.ANY,
        KeyAction.FEATURE,
        "changes the training",
        "amp",
        "torch_autocast",
        "sparse_gradients",
        "graph_harvesting",
        "moe",
        "pipeline",
        "expert_parallel",
        "hybrid_engine",
        "data_efficiency",
        "curriculum_learning",
        "progressive_layer_drop",
        "eigenvalue",
        "quantize_training",
        "compression_training",
        "weight_quantization",
        "sparse_attention",
        "elasticity",
        "autotuning",
        "msamp",
        "optimizer.params.amsgrad",
        "optimizer.params.nesterov",
        "optimizer.params.dampening",
        "optimizer.params.freeze_step",
        "optimizer.params.per_head_muon",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "fp16.fp16_master_weights_and_grads",
        "zero_optimization.zenflow",
        "zero_optimization.mics_hierarchical_params_gather",
        "zero_optimization.zeropp_loco_param",
    ),
    "gradient_allreduce_op": ConfigKey(
        ValueKind.TEXT, KeyAction.FEATURE, "changes the training", "mean"
    ),
    "managed_gradient_accumulation": ConfigKey(ValueKind.BOOL, KeyAction.TUNING, _MEMORY, True),
    "optimizer.params.bias_correction": ConfigKey(
        ValueKind.BOOL, KeyAction.FEATURE, "changes the training", True
    ),
}


SECTIONS = frozenset(
    ".".join(parts[:count])
    for parts in (name.split(".") for name in KEYS)
    for count in range(1, len(parts))
)
"""The sections of the configuration, such as `optimizer.params`: each contains a key of `KEYS`."""
