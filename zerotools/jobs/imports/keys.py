"""The keys of DeepSpeed's JSON, as DeepSpeed 0.19 reads them, and what each means for a job.

Names, kinds and defaults: deepspeed/runtime/{config,precision_config}.py, runtime/zero/*config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a value must be; the text ends a sentence. Numbers and booleans may be quoted."""

    BOOL = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    TEXT = "a string"
    NUMBERS = "a list of numbers"
    ANY = "any value"


class Fate(Enum):
    """What is done with a key."""

    READ = "read"  # a reader knows what it means
    TUNING = "tuning"  # DeepSpeed's own way of doing the same: results stay as they are
    IGNORED = "ignored"  # concerns DeepSpeed's output or launcher
    FEATURE = "feature"  # changes what is trained: harmless only where it is off


@dataclass(frozen=True)
class Key:
    """One key; `why` is the reason that a report gives, `default` DeepSpeed's own value."""

    kind: Kind
    fate: Fate
    why: str = ""
    default: Any = None
    stage3: bool = False


def _read(kind: Kind, *names: str) -> dict[str, Key]:
    return {name: Key(kind, Fate.READ) for name in names}


def _all(kind: Kind, fate: Fate, why: str, *names: str) -> dict[str, Key]:
    return {name: Key(kind, fate, why) for name in names}


def _zero(why: str, kind: Kind, *, stage3: bool = False, **defaults: Any) -> dict[str, Key]:
    return {
        f"zero_optimization.{name}": Key(kind, Fate.TUNING, why, default, stage3)
        for name, default in defaults.items()
    }


_COMMUNICATION = "how DeepSpeed communicates, not what it computes"
_GATHERING = "how DeepSpeed gathers weights, not what it computes"
_MEMORY = "how DeepSpeed lays out memory, not what it computes"
_LOSSY = "compresses what DeepSpeed communicates; the engine torch communicates exactly"
_STAGING = "how DeepSpeed moves what it offloads"
_REPORTS = "what DeepSpeed prints or logs; zerotools reports on its own"
_CHECKPOINTS = "how DeepSpeed writes checkpoints; zerotools writes its own"

KEYS: dict[str, Key] = {
    **_read(
        Kind.COUNT,
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "fp16.initial_scale_power",
        "fp16.loss_scale_window",
        "fp16.hysteresis",
        "zero_optimization.stage",
    ),
    **_read(Kind.NUMBER, "gradient_clipping", "fp16.loss_scale", "fp16.min_loss_scale"),
    **_read(
        Kind.BOOL,
        "fp16.enabled",
        "fp16.consecutive_hysteresis",
        "bf16.enabled",
        "bfloat16.enabled",
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_param",
        "zero_optimization.cpu_offload_params",
    ),
    **_read(
        Kind.TEXT,
        "optimizer.type",
        "scheduler.type",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
    ),
    **_read(
        Kind.NUMBER,
        "optimizer.params.lr",
        "optimizer.params.eps",
        "optimizer.params.weight_decay",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio",
    ),
    **_read(Kind.NUMBERS, "optimizer.params.betas"),
    **_read(Kind.BOOL, "optimizer.params.adam_w_mode"),
    **_read(
        Kind.COUNT,
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_num_steps",
    ),
    **_read(Kind.TEXT, "scheduler.params.warmup_type"),
    **_zero(
        _COMMUNICATION,
        Kind.BOOL,
        allgather_partitions=True,
        reduce_scatter=True,
        overlap_comm=True,
        use_multi_rank_bucket_allreduce=True,
    ),
    **_zero(
        _COMMUNICATION,
        Kind.COUNT,
        allgather_bucket_size=500_000_000,
        reduce_bucket_size=500_000_000,
        zero_hpz_partition_size=1,
    ),
    **_zero(
        _GATHERING,
        Kind.COUNT,
        stage3=True,
        stage3_prefetch_bucket_size=50_000_000,
        stage3_param_persistence_threshold=100_000,
        stage3_model_persistence_threshold=2**63 - 1,
        stage3_max_live_parameters=1_000_000_000,
        stage3_max_reuse_distance=1_000_000_000,
        stage3_module_granularity_threshold=0,
        sub_group_size=1_000_000_000,
    ),
    **_zero(
        _GATHERING,
        Kind.BOOL,
        stage3=True,
        stage3_use_all_reduce_for_fetch_params=False,
        stage3_allgather_sequential=False,
    ),
    **_zero(
        "checkpoints are sharded; zerotools consolidate makes 16-bit weights of one",
        Kind.BOOL,
        stage3=True,
        stage3_gather_16bit_weights_on_model_save=False,
        stage3_gather_fp16_weights_on_model_save=False,
    ),
    **_zero(
        _MEMORY,
        Kind.BOOL,
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
        Kind.BOOL,
        zero_quantized_weights=False,
        zero_quantized_nontrainable_weights=False,
        zero_quantized_gradients=False,
    ),
    **_zero(_GATHERING, Kind.ANY, leaf_module=None),
    **{
        f"zero_optimization.offload_{part}.{name}": Key(kind, Fate.TUNING, _STAGING, default)
        for part, count in (("optimizer", 4), ("param", 5))
        for name, kind, default in (
            ("pin_memory", Kind.BOOL, True),
            ("nvme_path", Kind.TEXT, None),
            ("buffer_count", Kind.COUNT, count),
            ("buffer_size", Kind.COUNT, 100_000_000),
            ("max_in_cpu", Kind.COUNT, 1_000_000_000),
            ("pipeline", Kind.BOOL, False),
            ("pipeline_read", Kind.BOOL, False),
            ("pipeline_write", Kind.BOOL, False),
            ("fast_init", Kind.BOOL, False),
            ("ratio", Kind.NUMBER, 1.0),
            ("super_offload", Kind.BOOL, False),
            ("cpuadam_cores_perc", Kind.NUMBER, 0.8),
        )
    },
    **_all(
        Kind.BOOL,
        Fate.TUNING,
        _COMMUNICATION,
        "prescale_gradients",
        "disable_allgather",
        "dataloader_drop_last",
        "disable_python_gc",
        "use_data_before_expert_parallelism",
    ),
    **_all(
        Kind.ANY,
        Fate.TUNING,
        "gradients are reduced in fp32 by the engine torch",
        "communication_data_type",
        "data_types",
        "gradient_predivide_factor",
        "seq_parallel_communication_data_type",
    ),
    **_all(
        Kind.BOOL,
        Fate.TUNING,
        "lets DeepSpeed take any optimizer; the engine torch has its own",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "optimizer.params.torch_adam",
        "optimizer.legacy_fusion",
    ),
    **_all(
        Kind.BOOL,
        Fate.TUNING,
        "the types of inputs are the engine torch's own affair",
        "fp16.auto_cast",
        "bf16.immediate_grad_update",
        "bf16.check_grad_overflow",
    ),
    **_all(
        Kind.ANY,
        Fate.TUNING,
        "settings for models that call DeepSpeed's checkpointing; it switches nothing on",
        "activation_checkpointing",
    ),
    **_all(Kind.ANY, Fate.TUNING, "for offload to disk; DeepSpeed's own", "aio"),
    **_all(Kind.ANY, Fate.TUNING, "how DeepSpeed runs kernels", "compile"),
    **_all(
        Kind.ANY,
        Fate.IGNORED,
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
        "wandb",
        "csv_monitor",
        "comet",
        "monitor_config",
        "vocabulary_size",
    ),
    **_all(Kind.ANY, Fate.IGNORED, _CHECKPOINTS, "checkpoint", "nebula", "datastates_ckpt"),
    **_all(
        Kind.ANY,
        Fate.FEATURE,
        "changes what is trained",
        "amp",
        "torch_autocast",
        "sparse_gradients",
        "moe",
        "pipeline",
        "tensor_parallel",
        "expert_parallel",
        "sequence_parallel_size",
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
        "optimizer.params.freeze_step",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "fp16.fp16_master_weights_and_grads",
        "zero_optimization.zenflow",
        "zero_optimization.mics_shard_size",
        "zero_optimization.mics_hierarchical_params_gather",
        "zero_optimization.zeropp_loco_param",
    ),
    "gradient_allreduce_op": Key(Kind.TEXT, Fate.FEATURE, "changes what is trained", "mean"),
    "managed_gradient_accumulation": Key(Kind.BOOL, Fate.TUNING, _MEMORY, True),
    "optimizer.params.bias_correction": Key(Kind.BOOL, Fate.FEATURE, "is always on", True),
}

SECTIONS = frozenset(
    ".".join(parts[:count])
    for parts in (name.split(".") for name in KEYS)
    for count in range(1, len(parts))
)
"""Keys whose values are objects that have keys of the table."""


def is_off(value: Any, default: Any) -> bool:
    """Whether a feature's value leaves it off: false, none, its default, `{"enabled": false}`."""
    if isinstance(value, dict):
        return not value or str(value.get("enabled")).lower() == "false"
    return value in (None, False, 0, 1) if default is None else bool(value == default)
