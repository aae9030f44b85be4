"""The keys of LLaMA-Factory's and axolotl's YAML that the Trainer's arguments are not called.

LLaMA-Factory 0.9.4, hparams/{model,data,training,finetuning}_args.py; axolotl 0.12,
utils/schemas/{config,training,peft,datasets}.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.jobs.launcher_keys.trainer_keys import TRAINER_DEFAULTS

LLAMAFACTORY_NAMES: Mapping[str, str] = {
    "cutoff_len": "sequence_length",
    "val_size": "eval_fraction",
    "lora_target": "lora_target_modules",
}
LLAMAFACTORY_DEFAULTS: Mapping[str, object] = {
    **TRAINER_DEFAULTS,
    "sequence_length": 2048,
    "double_quantization": True,
}
LLAMAFACTORY_STAGES: Mapping[str, bool] = {"sft": True, "pt": False}
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
        "how batches are filled up, not what is learned",
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
        "what is trained does not depend on it",
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
