"""The arguments of training programs, with their other names and their defaults.

Sources for the programs that are recognised by their name or arguments: finetune.py of alpaca-lora
and of Qwen; main.py and utils/ds_utils.py of step 1 of DeepSpeed-Chat; ModelConfig, SFTConfig and
DPOConfig of TRL 0.20 and later. LLaMA-Factory, axolotl and ms-swift have a command or YAML of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.jobs.launcher_keys.trainer_keys import ALL_LINEAR, TRAINER_DEFAULTS

ALPACA_LORA_NAMES: Mapping[str, str] = {
    "batch_size": "total_batch_size",
    "micro_batch_size": "per_device_train_batch_size",
    "val_set_size": "eval_fraction",
}
ALPACA_LORA_DEFAULTS: Mapping[str, object] = {
    **{name: each for name, each in TRAINER_DEFAULTS.items() if "accumulation" not in name},
    "total_batch_size": 128,
    "per_device_train_batch_size": 4,
    "learning_rate": 3e-4,
    "warmup_steps": 100,
    "precision": "fp16",
    "sequence_length": 256,
    "save_steps": 200,
    "save_total_limit": 3,
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
}

DEEPSPEED_CHAT_OWN = frozenset(
    (
        "zero_stage",
        "data_split",
        "sft_only_data_path",
        "lora_module_name",
        "enable_hybrid_engine",
        "print_loss",
        "num_padding_at_beginning",
    )
)
"""Arguments by which DeepSpeed-Chat is recognised: no other program has one of them together
with `model_name_or_path`.
"""
DEEPSPEED_CHAT_DEFAULTS: Mapping[str, object] = {
    **{name: each for name, each in TRAINER_DEFAULTS.items() if name != "save_steps"},
    "per_device_train_batch_size": 16,
    "num_train_epochs": 1.0,
    "learning_rate": 1e-3,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "precision": "fp16",
    "seed": 1234,
    "sequence_length": 512,
    "lora_alpha": 1,
}
"""The defaults of DeepSpeed-Chat's arguments.

There is no `save_steps`, because it saves the model only at the end.
"""
DEEPSPEED_CHAT_DPO = frozenset(("beta", "label_smoothing"))
"""Arguments that only DeepSpeed-Chat's DPO program has.

Its other arguments are those of the program for fine-tuning.
"""
DEEPSPEED_CHAT_DPO_RATE = 5e-5

QWEN_DEFAULTS: Mapping[str, object] = {
    **TRAINER_DEFAULTS,
    "sequence_length": 8192,
    "lora_rank": 64,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
}
QWEN_TARGETS: Mapping[str, tuple[str, ...]] = {
    "qwen": ("c_attn", "c_proj", "w1", "w2"),
    "qwen1.5": ALL_LINEAR["qwen2"],
}
"""Model family of Qwen -> the layers that get adapters if the arguments name none."""
MEDICAL_TEXT, MEDICAL_DPO = "pretraining", "dpo_training"
MEDICAL_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    MEDICAL_TEXT: {
        **TRAINER_DEFAULTS,
        "sequence_length": 1024,
        "lora_rank": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
    },
    "supervised_finetuning": {
        **TRAINER_DEFAULTS,
        "sequence_length": 512,
        "lora_rank": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
    },
    MEDICAL_DPO: {
        **TRAINER_DEFAULTS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "max_source_length": 2048,
        "max_target_length": 512,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 100,
        "precision": "fp16",
        "gradient_checkpointing": True,
        "save_steps": 50,
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
    },
}
"""Part of the file name of a MedicalGPT program (its training stage) -> the defaults of its
arguments.
"""
MEDICAL_COLUMNS: Mapping[str, str] = {
    "prompt_column": "question",
    "chosen_column": "response_chosen",
    "rejected_column": "response_rejected",
}
MEDICAL_DPO_SETS: Mapping[str, object] = {"max_steps": 200, "eval_strategy": "steps"}
"""Arguments of MedicalGPT's DPO program that have other defaults than in the Trainer.

The program does not use the Trainer's arguments.
"""
MEDICAL_IGNORED: Mapping[str, str] = {
    "template_name": "examples are rendered by the chat template of the tokenizer",
    "max_train_samples": "the job reads all data; to use less, write a shorter file",
    "torch_dtype": "train.precision is the type of the model's computations",
    "device_map": "the daemon gives each rank its GPU",
}
MEDICAL_DPO_IGNORED: Mapping[str, str] = {
    **MEDICAL_IGNORED,
    "weight_decay": "the program has this argument and does not use it",
}
TRL_LAUNCH = frozenset(
    (
        "config_file",
        "deepspeed_config_file",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "mixed_precision",
        "num_machines",
        "num_processes",
        "offload_optimizer_device",
        "offload_param_device",
        "rdzv_backend",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "zero_stage",
    )
)
"""Options of `accelerate launch` that have a value, and that no script of TRL has as an
argument.
"""
_SEVERAL = {"num_processes": 8}
TRL_PRESETS: Mapping[str, Mapping[str, object]] = {
    "single_gpu": {"num_processes": 1},
    "multi_gpu": {"multi_gpu": True, **_SEVERAL},
    **{f"zero{n}": {"use_deepspeed": True, "zero_stage": n, **_SEVERAL} for n in (1, 2, 3)},
    "fsdp1": {"use_fsdp": True, "fsdp_sharding_strategy": "FULL_SHARD", **_SEVERAL},
    "fsdp2": {
        "use_fsdp": True,
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": "true",
        **_SEVERAL,
    },
}
"""Name of an accelerate config that TRL contains -> the equivalent options of `accelerate
launch`. All of them use bf16, as TRL's arguments do.
"""
TRL_OWN = frozenset(("dataset_name", "dataset_mixer", "dataset_mixture", "use_peft"))
"""Arguments by which TRL is recognised.

TRL's programs need one of them. The name sft.py is not enough, because other programs have it, too.
"""
TRL_DEFAULTS: Mapping[str, object] = {
    **TRAINER_DEFAULTS,
    "precision": "bf16",
    "gradient_checkpointing": True,
    "sequence_length": 1024,
    "lora_rank": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
}
SFT_RATE, DPO_RATE = 2e-5, 1e-6
DPO_NAMES: Mapping[str, str] = {
    "beta": "dpo_beta",
    "label_smoothing": "label_smoothing_factor",
    "max_prompt_length": "max_source_length",
    "max_completion_length": "max_target_length",
}


LLAMAFACTORY_NAMES: Mapping[str, str] = {
    "cutoff_len": "sequence_length",
    "val_size": "eval_fraction",
    "lora_target": "lora_target_modules",
    "pref_beta": "dpo_beta",
}
LLAMAFACTORY_DEFAULTS: Mapping[str, object] = {
    **TRAINER_DEFAULTS,
    "sequence_length": 2048,
    "lora_rank": 8,
    "double_quantization": True,
}
LLAMAFACTORY_STAGES: Mapping[str, bool] = {"sft": True, "pt": False, "dpo": True}
"""LLaMA-Factory's `stage` -> whether the training data are examples (not plain text)."""
LLAMAFACTORY_METHODS: Mapping[str, bool] = {"full": False, "lora": True}
"""LLaMA-Factory's `finetuning_type` -> whether adapters are trained."""
LLAMAFACTORY_IGNORED: Mapping[str, str] = {
    "template": "examples are rendered by the chat template of the tokenizer",
    "dataset_dir": "the import looked for dataset_info.json there",
    "max_samples": "the job reads all data; to use less, write a shorter file",
    "media_dir": "the job reads no pictures",
    "ddp_timeout": "the daemon starts the ranks",
}

AXOLOTL_NAMES: Mapping[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
    "sequence_len": "sequence_length",
    "sample_packing": "packing",
    "val_set_size": "eval_fraction",
    "lora_r": "lora_rank",
    "optimizer": "optim",
    "lr_scheduler": "lr_scheduler_type",
    "adam_eps": "adam_epsilon",
    "base_model": "model_name_or_path",
    "tokenizer_config": "tokenizer_name",
    "tensor_parallel_size": "tensor_ranks",
    "context_parallel_size": "sequence_ranks",
    **dict.fromkeys(("rl_beta", "dpo_beta"), "dpo_beta"),
    "sequence_parallel_degree": "sequence_ranks",
}
AXOLOTL_DEFAULTS: Mapping[str, object] = {
    **{name: each for name, each in TRAINER_DEFAULTS.items() if name != "warmup_steps"},
    "warmup_ratio": 0.03,
    "per_device_train_batch_size": 1,
    "num_train_epochs": 1.0,
    "lr_scheduler_type": "cosine",
    "sequence_length": 512,
    "double_quantization": True,
}
AXOLOTL_IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "pad_to_sequence_len",
            "eval_sample_packing",
            "group_by_modality_length",
            "is_llama_derived_model",
        ),
        "changes how batches are padded, not the result",
    ),
    **dict.fromkeys(
        (
            "special_tokens",
            "tokens",
            "chat_template",
            "chat_template_jinja",
            "default_system_message",
        ),
        "the model's own tokenizer renders examples, so it must already have these settings",
    ),
    **dict.fromkeys(
        ("evals_per_epoch", "saves_per_epoch"),
        "the job counts in steps: set eval.every, checkpoint.every",
    ),
    **dict.fromkeys(
        ("shuffle_merged_datasets", "dataset_exact_deduplication"),
        "the job shuffles the data according to seed, and removes nothing",
    ),
    **dict.fromkeys(
        (
            "plugins",
            "loss_watchdog_threshold",
            "loss_watchdog_patience",
            "auto_resume_from_checkpoints",
            "gc_steps",
            "cut_cross_entropy",
        ),
        "it does not change the training",
    ),
}
AXOLOTL_ADAPTERS: Mapping[str, bool] = {"lora": True, "qlora": True, "": False, "none": False}
EXAMPLE_TYPES: Mapping[str, str] = {
    "alpaca": "alpaca",
    "alpaca_chat": "alpaca",
    "sharegpt": "messages",
    "chat_template": "messages",
    "completion": "",
}
"""axolotl's `type` of a dataset -> the job's `data.format`; the empty string means plain text."""

AXOLOTL_PAIRS: Mapping[str, Mapping[str, str]] = {
    "argilla": {
        "prompt_column": "instruction",
        "chosen_column": "chosen_response",
        "rejected_column": "rejected_response",
    },
    "icr": {"prompt_column": "input"},
    "intel": {"prompt_column": "question"},
    "prompt_pairs": {"prompt_column": "prompt"},
    "default": {"prompt_column": "messages"},
}
"""Last part of axolotl's `type` of a preference dataset -> its columns, if their names are not
`chosen` and `rejected`.

`ultra` and `argilla_chat` repeat the prompt in each answer, and are not supported.
"""
NOT_PACKED = "pairs of answers are not packed"
AXOLOTL_PAIR_FIELDS: Mapping[str, str] = {
    "field_messages": "prompt_column",
    "field_prompt": "prompt_column",
    "field_chosen": "chosen_column",
    "field_rejected": "rejected_column",
}

SWIFT_NAMES: Mapping[str, str] = {
    "model": "model_name_or_path",
    "dataset": "dataset_name",
    "val_dataset": "eval_dataset_name",
    "tuner_type": "train_type",
    "target_modules": "lora_target_modules",
    "max_length": "sequence_length",
    "quant_bits": "quantization_bit",
    "quant_method": "quantization_method",
    "split_dataset_ratio": "eval_fraction",
    "sequence_parallel_size": "sequence_ranks",
}
SWIFT_LORA_RATE = 1e-4
SWIFT_DEFAULTS: Mapping[str, object] = {
    **TRAINER_DEFAULTS,
    "per_device_train_batch_size": 1,
    "learning_rate": 1e-5,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "precision": "bf16",
    "lora_rank": 8,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "double_quantization": True,
}
SWIFT_PRECISIONS: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": ""}
"""ms-swift's `torch_dtype` -> the argument of the Trainer that becomes true; the empty string for
neither fp16 nor bf16.
"""
SWIFT_IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        ("model_author", "model_name"), "has an effect only on the examples of swift/self-cognition"
    ),
    **dict.fromkeys(
        ("dataset_num_proc", "load_from_cache_file", "use_hf", "packing_num_proc"),
        "controls how files are read; the job has its own way",
    ),
    **dict.fromkeys(
        ("template", "system", "agent_template"),
        "examples are rendered by the chat template of the tokenizer",
    ),
    "attn_impl": "it does not change the training",
}
