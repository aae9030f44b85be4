"""The keys of accelerate's YAML, with the names that accelerate 1.15 writes.

Sources: accelerate/commands/config/{config_args,cluster}.py and commands/launch.py.
"""

from __future__ import annotations

READ = frozenset(
    {
        "compute_environment",
        "distributed_type",
        "mixed_precision",
        "num_processes",
        "num_machines",
        "gpu_ids",
        "use_cpu",
        "enable_cpu_affinity",
        "deepspeed_config.deepspeed_config_file",
        "fsdp_config.fsdp_version",
        "fsdp_config.fsdp_sharding_strategy",
        "fsdp_config.fsdp_reshard_after_forward",
        "fsdp_config.fsdp_offload_params",
        "fsdp_config.fsdp_activation_checkpointing",
        "dynamo_config",
        "parallelism_config",
    }
)

DEEPSPEED = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
"""Key in the section `deepspeed_config` -> dotted key in DeepSpeed's own configuration.

accelerate refuses each of these keys together with `deepspeed_config_file` (utils/dataclasses.py,
`_deepspeed_config_checks`).
"""

_MACHINES = "here the daemon starts the ranks, on one machine"
_HABITS = "controls how accelerate starts a program; here the daemon starts the ranks"
_SHARDED = "no rank ever holds the whole model, and checkpoints are sharded"
_WRAPPING = "the model determines which blocks are sharded"

IGNORED = {
    **dict.fromkeys(
        (
            "machine_rank",
            "main_process_ip",
            "main_process_port",
            "rdzv_backend",
            "same_network",
            "deepspeed_config.deepspeed_multinode_launcher",
            "deepspeed_config.deepspeed_hostfile",
            "deepspeed_config.deepspeed_exclusion_filter",
            "deepspeed_config.deepspeed_inclusion_filter",
        ),
        _MACHINES,
    ),
    **dict.fromkeys(
        (
            "main_training_function",
            "debug",
            "command_file",
            "commands",
            "mpirun_config",
        ),
        _HABITS,
    ),
    **dict.fromkeys(
        (
            "downcast_bf16",
            "tpu_name",
            "tpu_zone",
            "tpu_use_cluster",
            "tpu_use_sudo",
            "tpu_vm",
            "tpu_env",
            "tpu_cluster",
        ),
        "is for TPUs",
    ),
    **dict.fromkeys(
        (
            "deepspeed_config.zero3_init_flag",
            "fsdp_config.fsdp_cpu_ram_efficient_loading",
            "fsdp_config.fsdp_sync_module_states",
            "fsdp_config.fsdp_state_dict_type",
        ),
        _SHARDED,
    ),
    **dict.fromkeys(
        (
            "deepspeed_config.deepspeed_moe_layer_cls_names",
            "fsdp_config.fsdp_auto_wrap_policy",
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
            "fsdp_config.fsdp_min_num_params",
        ),
        _WRAPPING,
    ),
    **dict.fromkeys(
        (
            "fsdp_config.fsdp_backward_prefetch",
            "fsdp_config.fsdp_backward_prefetch_policy",
            "fsdp_config.fsdp_forward_prefetch",
            "fsdp_config.fsdp_use_orig_params",
            "fsdp_config.fsdp_limit_all_gathers",
        ),
        "changes how FSDP1 communicates, not the result",
    ),
}
"""Key that the import ignores -> the reason in the report."""

FEATURES = frozenset(
    {
        "fp8_config",
        "megatron_lm_config",
        "ipex_config",
        "fsdp_config.fsdp_ignored_modules",
        "fsdp_config.fsdp_activation_checkpointing_offload",
    }
)
"""Keys that a job does not support.

They are ignored if they are empty or off, and refused otherwise.
"""

SECTIONS = ("deepspeed_config", "fsdp_config")
KNOWN = (*READ, *IGNORED, *FEATURES, *(f"deepspeed_config.{key}" for key in DEEPSPEED), *SECTIONS)
TABLES = (*SECTIONS, "parallelism_config", "dynamo_config", "fp8_config", "megatron_lm_config")
"""Keys with a mapping as their value."""
PREFIXES = {
    "fsdp_config": "fsdp_",
    "parallelism_config": "parallelism_config_",
    "dynamo_config": "dynamo_",
    "megatron_lm_config": "megatron_lm_",
}
"""Section -> the prefix that accelerate writes before the names of the keys in it."""
