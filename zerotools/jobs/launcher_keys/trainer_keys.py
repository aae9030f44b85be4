"""The arguments of Hugging Face's Trainer, and of the programs that are built on it.

Sources: training_args.py, training_args_seq2seq.py and examples/pytorch (run_clm.py,
run_summarization.py) of transformers 5.23. Names of earlier releases and of well-known programs are
included.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.jobs.launcher_keys.config_key import ValueKind

DIRECT: Mapping[str, tuple[str, ValueKind]] = {
    "learning_rate": ("train.learning_rate", ValueKind.NUMBER),
    "total_batch_size": ("train.batch_size", ValueKind.COUNT),
    "dpo_beta": ("dpo.beta", ValueKind.NUMBER),
    "weight_decay": ("train.weight_decay", ValueKind.NUMBER),
    "max_grad_norm": ("train.max_grad_norm", ValueKind.NUMBER),
    "seed": ("seed", ValueKind.COUNT),
    "per_device_train_batch_size": ("train.micro_batch_size", ValueKind.COUNT),
    "gradient_checkpointing": ("train.activation_checkpointing", ValueKind.BOOL),
    "torch_compile": ("train.compile", ValueKind.BOOL),
    "save_total_limit": ("checkpoint.keep_last", ValueKind.COUNT),
    "sequence_length": ("data.sequence_length", ValueKind.COUNT),
    "max_source_length": ("data.max_source_length", ValueKind.COUNT),
    "max_target_length": ("data.max_target_length", ValueKind.COUNT),
    "prompt_column": ("data.prompt_column", ValueKind.TEXT),
    "response_column": ("data.response_column", ValueKind.TEXT),
    "history_column": ("data.history_column", ValueKind.TEXT),
    "chosen_column": ("data.chosen_column", ValueKind.TEXT),
    "rejected_column": ("data.rejected_column", ValueKind.TEXT),
    "packing": ("data.packing", ValueKind.BOOL),
    "data_format": ("data.format", ValueKind.TEXT),
    "input_column": ("data.input_column", ValueKind.TEXT),
    "text_column": ("data.text_column", ValueKind.TEXT),
    "loss_on": ("data.loss_on", ValueKind.TEXT),
    "messages_column": ("data.messages_column", ValueKind.TEXT),
    "tensor_ranks": ("zero.tensor_ranks", ValueKind.COUNT),
    "sequence_ranks": ("zero.sequence_ranks", ValueKind.COUNT),
}
"""Argument of the Trainer -> the job's key with the same meaning, and its type."""

OF_EVAL: Mapping[str, tuple[str, ValueKind]] = {
    "per_device_eval_batch_size": ("eval.batch_size", ValueKind.COUNT),
    "max_eval_samples": ("eval.max_sequences", ValueKind.COUNT),
    "predict_with_generate": ("eval.predict_with_generate", ValueKind.BOOL),
    "max_predict_samples": ("eval.max_predictions", ValueKind.COUNT),
    "generation_max_length": ("eval.max_new_tokens", ValueKind.COUNT),
    "num_beams": ("eval.num_beams", ValueKind.COUNT),
    "generation_num_beams": ("eval.num_beams", ValueKind.COUNT),
}
"""Arguments that have an effect only if the model is evaluated during training -> the job's
key, and its type.
"""

SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "block_size",
            "max_seq_length",
            "max_seq_len",
            "model_max_length",
            "max_length",
            "cutoff_len",
        ),
        "sequence_length",
    ),
    **dict.fromkeys(
        ("per_gpu_train_batch_size", "train_bsz_per_gpu"), "per_device_train_batch_size"
    ),
    "max_train_steps": "max_steps",
    "num_warmup_steps": "warmup_steps",
    **dict.fromkeys(("per_gpu_eval_batch_size", "eval_bsz_per_gpu"), "per_device_eval_batch_size"),
    "save_step": "save_steps",
    "eval_step": "eval_steps",
    **dict.fromkeys(("model_path", "model_name", "base_model"), "model_name_or_path"),
    **dict.fromkeys(("train_files", "data_path", "train_data", "train_data_path"), "train_file"),
    **dict.fromkeys(
        ("validation_files", "eval_data_path", "eval_file", "test_file"), "validation_file"
    ),
    **dict.fromkeys(("evaluation_strategy",), "eval_strategy"),
    **dict.fromkeys(("use_peft", "lora_enable", "lora"), "use_lora"),
    **dict.fromkeys(("lora_r", "lora_dim"), "lora_rank"),
    **dict.fromkeys(("lora_target", "lora_targets", "target_modules"), "lora_target_modules"),
    **dict.fromkeys(("bits",), "quantization_bit"),
    **dict.fromkeys(("use_4bit_quantization", "use_4bit", "q_lora"), "load_in_4bit"),
    **dict.fromkeys(("bnb_4bit_quant_type", "quant_type"), "quantization_type"),
    **dict.fromkeys(
        (
            "bnb_4bit_use_double_quant",
            "use_bnb_nested_quant",
            "use_nested_quant",
            "double_quant",
        ),
        "double_quantization",
    ),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs"), "num_train_epochs"),
    "activation_checkpointing": "gradient_checkpointing",
    **dict.fromkeys(("target_column", "summary_column"), "response_column"),
}
"""Another name of an argument -> the name that these tables use."""

TRAINER_DEFAULTS: Mapping[str, object] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "precision": "fp32",
    "seed": 42,
    "save_steps": 500,
}
"""The defaults of the Trainer's arguments."""

TRAINERS_OWN = frozenset(
    {
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "lr_scheduler_type",
        "overwrite_output_dir",
        "output_dir",
        "save_total_limit",
        "do_train",
    }
)
"""Arguments by which a program built on the Trainer is recognised."""

OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "adamw",
            "adamw_hf",
            "adamw_torch",
            "adamw_torch_fused",
            "adamw_torch_xla",
            "adamw_apex_fused",
            "adamw_anyprecision",
        ),
        "adamw",
    ),
    **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), "adamw"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), "adamw8bit"),
    "adafactor": "adafactor",
    "sgd": "sgd",
}
SCHEDULES: Mapping[str, str] = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "warmup_stable_decay": "wsd",
}
"""Learning rate schedule of transformers (optimization.py) -> schedule of the job file."""

TRACKERS: Mapping[str, tuple[str, str, str]] = {
    "wandb": ("wandb_project", "WANDB_PROJECT", "huggingface"),
    "mlflow": ("mlflow_experiment_name", "MLFLOW_EXPERIMENT_NAME", "Default"),
}
"""Experiment tracker in `report_to` -> three things that name its project or experiment:
axolotl's argument, the environment variable that the Trainer reads, and the default.
"""

_HABITS = "it does not change the training"
_DAEMON = "the daemon does this by itself"
_STARTED = "the daemon starts the ranks"
_READING = "controls how files are read; the job has its own way"
_DISPLAY = "every step is recorded: zerotools logs, zerotools show"

IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "overwrite_output_dir"), _DAEMON),
    **dict.fromkeys(
        (
            "local_rank",
            "local-rank",
            "ddp_backend",
            "ddp_timeout",
            "ddp_bucket_cap_mb",
            "use_cpu",
            "ddp_find_unused_parameters",
            "ddp_broadcast_buffers",
            "log_on_each_node",
        ),
        _STARTED,
    ),
    **dict.fromkeys(
        (
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "preprocessing_num_workers",
            "overwrite_cache",
            "dataloader_prefetch_factor",
            "dataloader_persistent_workers",
            "cache_dir",
            "streaming",
            "use_fast_tokenizer",
            "lazy_preprocess",
            "tokenized_path",
            "dataset_prepared_path",
            "dataset_processes",
        ),
        _READING,
    ),
    **dict.fromkeys(
        (
            "logging_steps",
            "logging_strategy",
            "logging_dir",
            "logging_first_step",
            "log_level",
            "run_name",
            "disable_tqdm",
            "include_tokens_per_second",
            "plot_loss",
            "include_num_input_tokens_seen",
            "wandb_watch",
            "wandb_name",
            "wandb_log_model",
            "wandb_run_id",
            "debug",
            "strict",
            "xformers_attention",
        ),
        _DISPLAY,
    ),
    **dict.fromkeys(
        (
            "remove_unused_columns",
            "push_to_hub",
            "hub_model_id",
            "hub_token",
            "trust_remote_code",
            "save_safetensors",
            "save_on_each_node",
            "save_only_model",
            "skip_memory_metrics",
            "gradient_checkpointing_kwargs",
            "activation_checkpointing_kwargs",
            "low_cpu_mem_usage",
            "torch_compile_backend",
            "torch_compile_mode",
            "use_auth_token",
            "token",
            "model_revision",
            "bf16_full_eval",
            "fp16_full_eval",
            "eval_accumulation_steps",
            "prediction_loss_only",
            "model_type",
            "tokenizer_type",
            "flash_attention",
            "flash_attn",
            "sdp_attention",
            "attn_implementation",
            "hub_strategy",
            "group_by_modality_length",
            "fp16_opt_level",
            "fp16_backend",
            "half_precision_backend",
        ),
        _HABITS,
    ),
    "only_optimize_lora": "the job trains only the adapters in any case",
    "group_by_length": "the job does not order examples by length",
    **dict.fromkeys(
        ("train_on_inputs", "train_on_prompt"), "the loss is only on responses in any case"
    ),
    "data_seed": "the key seed also determines the order of the data",
    "dataloader_drop_last": "every batch of a job is full",
    "auto_find_batch_size": "the job always uses the given batch size",
    "greater_is_better": "see checkpoint.best",
    "test_datasets": "see eval.files",
    **dict.fromkeys(
        (
            "bnb_4bit_compute_dtype",
            "bnb_4bit_quant_storage",
            "bnb_4bit_quant_storage_dtype",
            "quantization_device_map",
        ),
        "train.precision is the type for computing with weights of 4 bits",
    ),
    "tf32": "fp32 matrix products use torch's default; weights and optimizer stay fp32",
}
"""Argument that the import ignores -> the reason in the report."""

FEATURES: frozenset[str] = frozenset(
    [
        "vision_tower",
        "image_folder",
        "pretrain_mm_mlp_adapter",
        "tune_mm_mlp_adapter",
        "lora_weight_path",
        "use_int8_training",
        "rlhf_type",
        "pref_ftx",
        "label_smoothing_factor",
        "neftune_noise_alpha",
        "use_dora",
        "use_rslora",
        "use_galore",
        "use_badam",
        "lora_bias",
        "load_in_8bit",
        "pre_seq_len",
        "prefix_projection",
        "use_liger_kernel",
        "freeze_backbone",
        "reward_model",
        "ref_model",
        "pissa_init",
        "loraplus_lr_ratio",
        "use_unsloth",
        "mixture_of_depths",
        "additional_target",
        "lora_modules_to_save",
        "pure_bf16",
        "resize_vocab",
        "early_stopping_patience",
        "optim_args",
        "optim_target_modules",
        "noisy_embedding_alpha",
        "unfrozen_parameters",
        "lr_quadratic_warmup",
        "cosine_constant_lr_ratio",
        "embedding_lr",
        "embedding_lr_scale",
        "rope_scaling",
        "moe_aux_loss_coef",
        "use_llama_pro",
        "use_adam_mini",
        "use_apollo",
        "use_muon",
        "use_dft_loss",
        "reference_free",
        "rpo_alpha",
        "ld_alpha",
        "f_divergence_type",
        "f_alpha_divergence_coef",
        "use_weighting",
        "sync_ref_model",
        "ref_model_name_or_path",
        "loss_weights",
    ]
)
"""Arguments that change the training in a way that jobs do not support.

They are refused unless they are off.
"""

ALL_LINEAR: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "olmo",
            "olmo2",
            "granite",
            "cohere",
            "smollm3",
            "stablelm",
        ),
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    ),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
}
"""`model_type` -> the linear layers in each block of such a model, by the last part of their
names.
"""
MODEL_NAMES: Mapping[str, str] = {
    r"llava|vision|-vl-|audio|omni|paligemma|recurrentgemma|gemma-?3|mistral-small-3\.\d": "",
    r"qwen(?:1\.5|2|2\.5)-(?!moe|\d+b-a\d)": "qwen2",
    r"qwen3-(?!moe|next|\d+b-a\d)": "qwen3",
    r"(?:tiny)?llama-?[23]?(?:\.\d)?-(?!4|guard)|llama-\d+b|vicuna|smollm2?-": "llama",
    r"(?:^|/)yi-\d": "llama",
    r"mistral-|zephyr-": "mistral",
    r"gemma-": "gemma",
    r"phi-3(?:\.5)?-mini": "phi3",
    r"pythia-": "gpt_neox",
}
"""Pattern for a model's name on a hub -> its `model_type`; the first pattern that matches is
used. The empty string means a model with images, sound or other layers: its config is needed.
"""
