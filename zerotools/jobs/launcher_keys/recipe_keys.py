"""The keys of LLaMA-Factory, axolotl and ms-swift with names other than the Trainer's.

LLaMA-Factory 0.9.4, hparams/{model,data,training,finetuning}_args.py; axolotl 0.12,
utils/schemas/{config,training,peft,datasets}.py; ms-swift 3, docs, Command-line-parameters.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.jobs.launcher_keys.trainer_keys import TRAINER_DEFAULTS

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
"""Stage -> whether it is trained on examples."""
LLAMAFACTORY_METHODS: Mapping[str, bool] = {"full": False, "lora": True}
"""`finetuning_type` -> whether adapters are trained."""
LLAMAFACTORY_IGNORED: Mapping[str, str] = {
    "template": "examples are rendered by the chat template of the tokenizer",
    "dataset_dir": "where dataset_info.json was looked for",
    "max_samples": "the whole data is read; write a shorter file",
    "media_dir": "no pictures are read",
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
    **TRAINER_DEFAULTS,
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
        "how batches are padded; the result is the same",
    ),
    **dict.fromkeys(
        (
            "special_tokens",
            "tokens",
            "chat_template",
            "chat_template_jinja",
            "default_system_message",
        ),
        "examples are rendered by the tokenizer of the model, which must have them",
    ),
    **dict.fromkeys(
        ("evals_per_epoch", "saves_per_epoch"),
        "counted in steps here: eval.every, checkpoint.every",
    ),
    **dict.fromkeys(
        ("shuffle_merged_datasets", "dataset_exact_deduplication"),
        "the data is shuffled by seed, and taken as it is",
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
"""`type` of a dataset -> `data.format`; empty: plain text."""

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
"""The last part of the `type` of a dataset of pairs -> its columns, if they are not `chosen` and
`rejected`. `ultra` and `argilla_chat` repeat the prompt in each answer, and are not read."""
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
"""`torch_dtype` -> the argument of the Trainer; empty: neither."""
SWIFT_IGNORED: Mapping[str, str] = {
    **dict.fromkeys(
        ("model_author", "model_name"), "is put into the examples of swift/self-cognition alone"
    ),
    **dict.fromkeys(
        ("dataset_num_proc", "load_from_cache_file", "use_hf", "packing_num_proc"),
        "how files are read; the trainer reads them differently",
    ),
    **dict.fromkeys(
        ("template", "system", "agent_template"),
        "examples are rendered by the chat template of the tokenizer",
    ),
    "attn_impl": "it does not change the training",
}
