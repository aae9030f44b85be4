"""The keys of `zero_optimization` that no reader takes, with DeepSpeed's defaults.

Names and defaults: deepspeed/runtime/zero/{config,offload_config}.py of 0.19.
"""

from __future__ import annotations

from typing import Any

from zerotools.jobs.launcher_keys.key_kinds import ConfigKey, KeyAction, ValueKind

_COMMUNICATION = "how DeepSpeed communicates; the result is the same"
_GATHERING = "how DeepSpeed gathers weights; the result is the same"
_MEMORY = "how DeepSpeed lays out memory; the result is the same"
_LOSSY = "compresses what DeepSpeed communicates; the engine torch communicates exactly"
_STAGING = "how DeepSpeed moves offloaded data"


def _zero(
    why: str, kind: ValueKind, *, stage3: bool = False, **defaults: Any
) -> dict[str, ConfigKey]:
    """Return keys of one kind; DeepSpeed takes those of stage 3 with and without the prefix too."""
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
    # templates of stage 2 have it, too, where DeepSpeed passes it over
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
